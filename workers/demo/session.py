"""The demo: publish a text, count its words, kill a worker, and compare the result with an
independent count that shares no code with the topology.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tiercel.acker.metrics.contract import percentile, total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import translated
from tiercel.queues.broker.declare import declare_queue
from tiercel.queues.broker.depths import QueueDepth, depths
from tiercel.queues.publishing.dead_letters import show as show_dead_letters
from tiercel.queues.publishing.publisher import Publisher
from tiercel.workers.config import Settings
from tiercel.workers.demo import topology as demo_topology
from tiercel.workers.errors import UsageError, WorkersError
from tiercel.workers.lifecycle import set_up_logging
from tiercel.workers.loading import load_topology
from tiercel.workers.local.private import servers
from tiercel.workers.local.run import LocalRun, spout_name
from tiercel.workers.terminal import cell, say

_WORD = re.compile(r"\S+")
_FIRST_WORD = re.compile(r'\{"first_word": (\d+)')


@dataclass(frozen=True)
class Text:
    """Non-blank lines, each with the number of its first word, counted through the whole text."""

    lines: Sequence[str]
    first_word: Sequence[int]
    words: int

    @classmethod
    def of(cls, lines: Sequence[str]) -> Text:
        """Number the words of the lines."""
        first_word = []
        total = 0
        for line in lines:
            first_word.append(total)
            total += len(_WORD.findall(line))
        return cls(lines, first_word, total)

    def bodies(self) -> Iterator[bytes]:
        """Yield one JSON message per line: the sentence and the number of its first word."""
        for line, first in zip(self.lines, self.first_word, strict=True):
            yield json.dumps({"first_word": first, "sentence": line}).encode()

    def line_of(self, body: str) -> int:
        """Return the index of a message's line, read from the beginning of its body."""
        found = _FIRST_WORD.match(body)
        if found is None:
            raise ValueError(f"{body!r:.80} is not a message of this text")
        return bisect_right(self.first_word, int(found[1])) - 1

    def length(self, line: int) -> int:
        """Return the number of words in a line."""
        return len(_WORD.findall(self.lines[line]))

    def counts(self, without: set[int]) -> Counter[str]:
        """Count the words of the text, without the lines at these indices."""
        return Counter(
            word
            for i, line in enumerate(self.lines)
            if i not in without
            for word in _WORD.findall(line)
        )

    def unseen_lines(self, seen: bytes, without: set[int]) -> list[int]:
        """Return the indices of lines with at least one word not marked in ``seen``.

        Word n is bit n, most significant first.
        """
        missing = []
        for i, (line, first) in enumerate(zip(self.lines, self.first_word, strict=True)):
            if i not in without and not all(
                _bit(seen, first + n) for n in range(len(_WORD.findall(line)))
            ):
                missing.append(i)
        return missing


def load(path: Path | None, repeat: int) -> list[str]:
    """Return the non-blank lines of a file, repeated ``repeat`` times.

    Without a file, takes the Python language reference, which comes with CPython.
    """
    if path is None:
        from pydoc_data.topics import topics  # noqa: PLC0415 - 700 kB of text, only for the demo

        text = "\n".join(topics[name] for name in sorted(topics))
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path} as UTF-8 text: {error}") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{path} has no lines to count; name a text file")
    return lines * repeat


def with_poison(lines: Sequence[str], count: int) -> list[str]:
    """Return the lines with ``count`` poison lines spread among them."""
    mixed = list(lines)
    for number in range(count):
        mixed.insert(
            len(mixed) * (number + 1) // (count + 1), f"{demo_topology.POISON} {number + 1}"
        )
    return mixed


def _bit(bits: bytes, position: int) -> bool:
    byte = position >> 3
    return byte < len(bits) and bool(bits[byte] & (0x80 >> (position & 7)))


_POISON_LINES = 3
_LOOK_S = 0.25
_STALLED_S = 120.0
_TOP = 10
# Figures that the JSON leaves out.
_ON_SCREEN = ("overcounted", "words", "depth")


def run_demo(
    settings: Settings, path: Path | None, repeat: int, stopped: threading.Event, *, calm: bool
) -> int:
    """Run the demo, and print its result.

    Returns the exit code: 0 if nothing is lost, 1 if something is, 130 if ``stopped`` is set first.
    """
    console = Console()
    set_up_logging(settings.log, settings.log_level, "demo", console)
    lines = load(path, repeat)
    text = Text.of(lines if calm else with_poison(lines, _POISON_LINES))
    name = f"{demo_topology.__name__}:{'calm' if calm else 'faulty'}"
    console.print(
        f"[bold]tiercel demo[/]: {len(text.lines):,} lines, {text.words:,} words"
        + (
            ", no injected faults"
            if calm
            else f", 1 % of the sentences fail, {_POISON_LINES} lines are poison"
        )
    )
    topology = load_topology(name)
    with servers(settings, topology, stopped=stopped) as found:
        console.print("RabbitMQ and Redis are ready; Spark starts while the text is published")
        observer = Observer(found)
        observer.reset()
        with LocalRun(name, topology, found) as running:
            observer.publish(text, console)
            samples = _watch(console, running, observer, text, stopped, kill=not calm)
        if stopped.is_set():
            console.print("stopped")
            return 130
        return _report(console, observer.result(text, samples))


def _watch(  # noqa: PLR0913 - the actors of the demo
    console: Console,
    running: LocalRun,
    observer: Observer,
    text: Text,
    stopped: threading.Event,
    *,
    kill: bool,
) -> list[DemoProgress]:
    """Show the progress until all words are counted; with ``kill``, kill a spout worker halfway."""
    total = text.words
    samples: list[DemoProgress] = []
    to_kill: list[Callable[[], None]] = [lambda: _kill_a_worker(console, running)] if kill else []
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(), console=console,
    )  # fmt: skip
    with progress:
        bar = progress.add_task("words counted", total=total, note="Spark is starting")
        moved_at = time.monotonic()
        while not stopped.wait(_LOOK_S):
            sample = observer.sample(text)
            before = samples[-1] if samples else None
            if before is None or (sample.words, sample.failed) != (before.words, before.failed):
                moved_at = time.monotonic()
            samples.append(sample)
            progress.update(bar, completed=sample.words, note=sample.note())
            if to_kill and sample.words > total // 2:
                to_kill.pop()()
            if sample.words >= total and observer.all_counted(text):
                break
            _check_alive(running, moved_at)
    return samples


def _kill_a_worker(console: Console, running: LocalRun) -> None:
    pid = running.spout(demo_topology.SPOUT, 0).pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        console.print(
            f"[bold red]SIGKILL[/] to {spout_name(demo_topology.SPOUT, 0)} (process {pid}): the "
            f"broker requeues its messages"
        )


def _check_alive(running: LocalRun, moved_at: float) -> None:
    if running.refused:
        raise WorkersError(f"{', '.join(running.refused)} cannot run; the log above has the reason")
    if time.monotonic() - moved_at > _STALLED_S:
        raise WorkersError(
            f"no progress for {_STALLED_S:.0f} s: see the log (tiercel demo --log-level info)"
        )


@dataclass(frozen=True, kw_only=True)
class DemoProgress:
    """A measurement while the demo runs."""

    at: float
    # Number of words that have been counted or are in dead letters.
    words: int
    failed: int
    ready: int

    def note(self) -> str:
        return f"{self.ready:,} waiting, {self.failed:,} failed"


class Observer:
    """Reads figures from the broker and from Redis."""

    def __init__(self, settings: Settings) -> None:
        self._amqp = settings.amqp or ""
        self._management = settings.management
        self._redis = connect(settings.redis_urls[0], demo_topology.COUNTS_KEY)
        self._metrics = RedisMetrics(settings.redis_urls[0], demo_topology.NAME)
        self._published = 0

    def reset(self) -> None:
        """Clear the data of an earlier demo on the same servers."""
        self._metrics.clear()
        with translated("clear the counts", self._redis):
            self._redis.delete(demo_topology.COUNTS_KEY, demo_topology.SEEN_KEY)
        declare_queue(self._amqp, demo_topology.WORK_QUEUE)

    def publish(self, text: Text, console: Console) -> None:
        """Publish the text, one line per message, with a progress bar."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console) as progress, Publisher(self._amqp) as publisher:
            bar = progress.add_task("published", total=len(text.lines))
            self._published = publisher.publish(
                demo_topology.QUEUE,
                text.bodies(),
                on_confirmed=lambda count: progress.advance(bar, count),
            )

    def sample(self, text: Text) -> DemoProgress:
        """Measure the progress."""
        counts = total_of(self._metrics.totals(), demo_topology.SPOUT)
        depth = self._depth()
        waiting = depth.ready + (depth.delayed or 0)
        return DemoProgress(
            at=time.monotonic(),
            words=self._words(text, depth),
            failed=counts["failed"],
            ready=waiting,
        )

    def all_counted(self, text: Text) -> bool:
        """Return True if the queue is empty and every word has been counted.

        Words of dead-lettered lines count as counted.
        """
        depth = self._depth()
        return (
            not (depth.ready or depth.delayed or depth.unacked)
            and self._words(text, depth) == text.words
        )

    def result(self, text: Text, samples: list[DemoProgress]) -> Result:
        """Compare the counts with the text; call it when the workers have ended."""
        depth = self._depth()
        totals = total_of(self._metrics.totals(), demo_topology.SPOUT)
        with translated("read the counts", self._redis):
            words: list[tuple[bytes, float]] = self._redis.zrange(
                demo_topology.COUNTS_KEY, 0, -1, withscores=True
            )  # type: ignore[assignment]
            seen: bytes = self._redis.get(demo_topology.SEEN_KEY) or b""  # type: ignore[assignment]
        counts = {word.decode(): int(count) for word, count in words}
        dead_lettered = depth.dead_lettered or 0
        dead_lines = self._dead_lines(text, depth)
        true = text.counts(without=dead_lines)
        top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_TOP]
        return Result(
            published=self._published,
            acked=self._published - depth.ready - (depth.delayed or 0) - dead_lettered,
            requeued=totals["redelivered"],
            dead_lettered=dead_lettered,
            lost=len(text.unseen_lines(seen, without=dead_lines)),
            undercounted=sum(counts.get(word, 0) < count for word, count in true.items()),
            overcounted=sum(count > true.get(word, 0) for word, count in counts.items()),
            sentences_per_s=_rate(samples, text),
            p50_ms=percentile(totals, 0.5) or 0.0,
            p99_ms=percentile(totals, 0.99) or 0.0,
            words=[(word, count, true.get(word, 0)) for word, count in top],
            depth=depth,
        )

    def _depth(self) -> QueueDepth:
        return depths(self._amqp, [demo_topology.QUEUE], self._management)[0]

    def _words(self, text: Text, depth: QueueDepth) -> int:
        with translated("read the counts", self._redis):
            seen: int = self._redis.bitcount(demo_topology.SEEN_KEY)
        return seen + sum(text.length(line) for line in self._dead_lines(text, depth))

    def _dead_lines(self, text: Text, depth: QueueDepth) -> set[int]:
        if not depth.dead_lettered:
            return set()
        letters = show_dead_letters(self._amqp, demo_topology.QUEUE, limit=depth.dead_lettered)
        return {text.line_of(letter.preview) for letter in letters}


def _report(console: Console, result: Result) -> int:
    show_words(console, result.words)
    show_result(console, result)
    if not result.nothing_lost:
        console.print(
            "[bold red]Messages were lost.[/] This must not happen: please report it with the log."
        )
    say(result.as_json())
    return 0 if result.nothing_lost else 1


def _rate(samples: list[DemoProgress], text: Text) -> float:
    """Return sentences per second, from the first counted word until 99 % are counted.

    The last percent waits for retries.
    """
    mark = samples[-1].words * 0.99
    end = next(sample for sample in samples if sample.words >= mark)
    start = [sample for sample in samples if sample.words == 0] or samples
    words_per_s = (end.words - start[-1].words) / max(end.at - start[-1].at, _LOOK_S)
    return words_per_s * len(text.lines) / text.words


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of one demo."""

    # Messages confirmed by the broker.
    published: int
    # Messages that left the queue and are not dead-lettered.
    acked: int
    # Repeated deliveries of a message.
    requeued: int
    dead_lettered: int
    # Lines that left the queue although a word of theirs was not counted.
    lost: int
    # Words whose count is below the independent count.
    undercounted: int
    # Words whose count is too high, because a sentence was processed twice.
    overcounted: int
    sentences_per_s: float
    # Complete latency, from the emit to the outcome of the whole tree.
    p50_ms: float
    p99_ms: float
    # The most frequent words: word, counted, true count.
    words: Sequence[tuple[str, int, int]]
    depth: QueueDepth

    @property
    def nothing_lost(self) -> bool:
        return self.lost == 0 and self.undercounted == 0

    def as_json(self) -> str:
        return json.dumps(
            {
                name: round(value, 1) if isinstance(value, float) else value
                for name, value in asdict(self).items()
                if name not in _ON_SCREEN
            }
        )


_COUNTED_AGAIN = (
    "A word is counted again when its sentence is delivered again, because another word of it "
    "failed: at least once."
)


def show_words(console: Console, words: Sequence[tuple[str, int, int]]) -> None:
    """Print the most frequent words, given as (word, counted, true count)."""
    more = any(counted > true for _, counted, true in words)
    table = Table(
        title="The most frequent words",
        title_justify="left",
        caption=_COUNTED_AGAIN if more else None,
        caption_justify="left",
    )
    table.add_column("word")
    table.add_column("counted", justify="right")
    table.add_column("in the text", justify="right")
    for word, counted, true in words:
        table.add_row(cell(word), f"{counted:,}", f"{true:,}")
    console.print(table)


def show_result(console: Console, result: Result) -> None:
    """Print the figures and the depths of the queues."""
    depth = result.depth
    table = Table(title="What became of the messages", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("published", f"{result.published:,}")
    table.add_row("acked", f"{result.acked:,}")
    table.add_row("requeued", f"{result.requeued:,}")
    table.add_row("dead-lettered", f"{result.dead_lettered:,}")
    table.add_row("lost", _alarm(result.lost))
    table.add_row("words undercounted", _alarm(result.undercounted))
    table.add_row("words counted too often", f"{result.overcounted:,}")
    table.add_row("sentences per second", f"{result.sentences_per_s:,.0f}")
    table.add_row("complete latency p50", f"{result.p50_ms:,.0f} ms")
    table.add_row("complete latency p99", f"{result.p99_ms:,.0f} ms")
    # No message is unacked: the workers have ended. RabbitMQ's figure is seconds old.
    table.add_row(f"queue {depth.name}", f"{depth.ready:,} ready")
    table.add_row(f"queue {depth.name}.dead", f"{depth.dead_lettered or 0:,} ready")
    console.print(table)


def _alarm(count: int) -> str:
    return "[green]0[/]" if count == 0 else f"[red]{count:,}[/]"
