"""The demo's measurements, from the broker and from Redis, while it runs and when it has ended."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tiercel.acker.connection.client import connect
from tiercel.acker.connection.errors import translated
from tiercel.acker.metrics.histogram import percentile
from tiercel.acker.metrics.redis_counters import RedisMetrics
from tiercel.acker.metrics.windows import total_of
from tiercel.queues.broker.declare import declare_queue
from tiercel.queues.broker.depths import QueueDepth, depths
from tiercel.queues.publishing.dead_letters import show as show_dead_letters
from tiercel.queues.publishing.publisher import Publisher
from tiercel.workers.config import Settings
from tiercel.workers.demo import topology as demo
from tiercel.workers.demo.text import Text


@dataclass(frozen=True, kw_only=True)
class DemoProgress:
    """One look while the demo runs."""

    at: float
    # Different words of the text that have been counted, or that stand in dead letters.
    words: int
    failed: int
    ready: int

    def note(self) -> str:
        return f"{self.ready:,} waiting, {self.failed:,} failed"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """State at the end, when no worker runs any more."""

    published: int
    ready: int
    dead_lettered: int
    dead_lines: set[int]
    redelivered: int
    counts: dict[str, int]
    seen: bytes
    p50_ms: float
    p99_ms: float
    depth: QueueDepth


class Observer:
    """The demo's view of its servers."""

    def __init__(self, settings: Settings) -> None:
        self._amqp = settings.amqp or ""
        self._management = settings.management
        self._redis = connect(settings.redis_urls[0], demo.COUNTS_KEY)
        self._metrics = RedisMetrics(settings.redis_urls[0], demo.NAME)
        self._published = 0

    def reset(self) -> None:
        """Forget what an earlier demo left on servers that were there before."""
        self._metrics.clear()
        with translated("clear the counts"):
            self._redis.delete(demo.COUNTS_KEY, demo.SEEN_KEY)
        declare_queue(self._amqp, demo.WORK_QUEUE)

    def publish(self, text: Text, console: Console) -> None:
        """Publish the text, one line per message, with a progress bar."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console) as progress, Publisher(self._amqp) as publisher:
            bar = progress.add_task("published", total=len(text.lines))
            self._published = publisher.publish(
                demo.QUEUE, text.bodies(), on_confirmed=lambda count: progress.advance(bar, count)
            )

    def sample(self, text: Text) -> DemoProgress:
        """Measure the progress."""
        counts = total_of(self._metrics.totals(), demo.SPOUT)
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

        Those of dead lines are not waited for.
        """
        depth = self._depth()
        return (
            not (depth.ready or depth.delayed or depth.unacked)
            and self._words(text, depth) == text.words
        )

    def audit(self, text: Text) -> Audit:
        """Everything there is to compare; call it when the workers have ended."""
        depth = self._depth()
        counts = total_of(self._metrics.totals(), demo.SPOUT)
        with translated("read the counts"):
            words: list[tuple[bytes, float]] = self._redis.zrange(
                demo.COUNTS_KEY, 0, -1, withscores=True
            )  # type: ignore[assignment]
            seen: bytes = self._redis.get(demo.SEEN_KEY) or b""  # type: ignore[assignment]
        return Audit(
            published=self._published,
            ready=depth.ready + (depth.delayed or 0),
            dead_lettered=depth.dead_lettered or 0,
            dead_lines=self._dead_lines(text, depth),
            redelivered=counts["redelivered"],
            counts={word.decode(): int(count) for word, count in words},
            seen=seen,
            p50_ms=percentile(counts, 0.5) or 0.0,
            p99_ms=percentile(counts, 0.99) or 0.0,
            depth=depth,
        )

    def _depth(self) -> QueueDepth:
        return depths(self._amqp, [demo.QUEUE], self._management)[0]

    def _words(self, text: Text, depth: QueueDepth) -> int:
        with translated("read the counts"):
            seen: int = self._redis.bitcount(demo.SEEN_KEY)
        return seen + sum(text.length(line) for line in self._dead_lines(text, depth))

    def _dead_lines(self, text: Text, depth: QueueDepth) -> set[int]:
        if not depth.dead_lettered:
            return set()
        letters = show_dead_letters(self._amqp, demo.QUEUE, limit=depth.dead_lettered)
        return {text.line_of(letter.preview) for letter in letters}
