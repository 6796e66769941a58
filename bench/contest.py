"""Runs of the peers: each drains a queue of the same sentences on the same servers.

All processes of a peer run on this machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from bench.peers.words import BEGAN
from bench.probe import ProbeResults, ProcessSample
from bench.processes import cpu_seconds, spent
from bench.rig import ROOT, WORDS, BenchError, clear, fill, sentences, until
from bench.throughput import Drained, drained
from tiercel.compose.guard import GuardedProcess, Launch
from tiercel.workers.config import Settings, child_environment, python_path

# Sentences per second below which a run is aborted.
_SLOWEST = {"bare": 2_000, "inline": 100, "celery": 5, "dramatiq": 5}
_LOOK_S = 0.1
_GRACE_S = 15.0


def consumer(what: str, settings: Settings, count: int) -> Drained:
    """Measure the consumer ``bare`` or ``inline`` of ``bench.peers.consumer``."""
    queue = f"bench-{what}"
    try:
        fill(settings, queue, sentences(count))
        samples, used = _consumed(what, queue, settings, count)
        if what == "inline":
            _check_words(settings, what, count)
    finally:
        clear(settings, [queue])
    acks = [(samples[0].at, 0.0), *((sample.at, float(sample.acked)) for sample in samples)]
    return drained(what, count, samples[0].at, acks, used)


def _consumed(
    what: str, queue: str, settings: Settings, count: int
) -> tuple[list[ProcessSample], dict[str, float]]:
    before = cpu_seconds()
    with consuming(what, queue, settings) as (reading, check):
        within_s = 60 + count / _SLOWEST[what]
        until(
            lambda: check() or reading.last().acked >= count, within_s, f"{count:,} acks of {what}"
        )
        used = spent(before, cpu_seconds())
        return reading.samples(), used


@contextmanager
def consuming(
    what: str, queue: str, settings: Settings, *, timed: bool = False
) -> Iterator[tuple[ProbeResults, Callable[[], bool]]]:
    """Run the consumer ``bare`` or ``inline`` within the block.

    Yields the results of its probe, and a check that raises BenchError if the consumer has ended.
    """
    with tempfile.TemporaryDirectory(prefix="tiercel-bench-") as folder:
        reading = ProbeResults(Path(folder))
        argv = [sys.executable, "-m", "bench.peers.consumer", what, queue]
        with peer_process(argv, settings, reading.environment(timed=timed)) as check:
            yield reading, check


def task_queue(what: str, settings: Settings, count: int, python: str) -> Drained:
    """Measure ``celery`` or ``dramatiq``, from the first task to the last word.

    ``python`` is a Python that has them installed. There is no steady rate of sentences, because
    the tasks of words queue behind the tasks of all sentences.
    """
    module = f"bench.peers.{what}_tasks"
    workers = {
        "celery": ["-m", "celery", "-A", module, "worker", "--loglevel", "error"],
        "dramatiq": ["-m", "dramatiq", module],
    }
    environment = {**settings.as_environment(), **python_path(ROOT)}
    try:
        subprocess.run(  # noqa: S603 - our own module
            [python, "-m", module],
            input=b"\n".join(sentences(count)),
            env=child_environment(environment),
            check=True,
            cwd=ROOT,
        )
        with redis.Redis.from_url(settings.redis_urls[0]) as client:
            client.config_resetstat()
        before = cpu_seconds()
        with peer_process([python, *workers[what]], settings, {}) as check:
            seconds = _seconds_of_tasks(what, settings, count, check)
            used = spent(before, cpu_seconds())
        _check_words(settings, what, count)
    except subprocess.CalledProcessError as error:
        raise BenchError(
            f"{python} cannot send tasks of {what}; it needs what bench/requirements.in names"
        ) from error
    finally:
        clear(settings, [])
    return Drained(
        what=what, sentences=count, whole_per_s=count / seconds, steady_per_s=None, cpu_s=used
    )


def _seconds_of_tasks(
    what: str, settings: Settings, count: int, check: Callable[[], bool]
) -> float:
    """Return the seconds from the first task to the last word."""
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        deadline = time.monotonic() + 60 + count / _SLOWEST[what]
        while (words := _increments(client)) < count * WORDS:
            check()
            if time.monotonic() > deadline:
                raise BenchError(f"{what}: only {words:,} of {count * WORDS:,} words were counted")
            time.sleep(_LOOK_S)
        return time.monotonic() - float(client.get(BEGAN) or 0)


@contextmanager
def peer_process(
    argv: Sequence[str], settings: Settings, more: Mapping[str, str]
) -> Iterator[Callable[[], bool]]:
    """Run a peer's process, which may have children, until the block ends.

    Yields a check that raises BenchError if the process has ended.
    """
    environment = {**settings.as_environment(), **python_path(ROOT), **more}
    with tempfile.NamedTemporaryFile(prefix="tiercel-bench-") as output:
        process = GuardedProcess(
            Launch(
                argv=tuple(argv),
                env=child_environment(environment),
                cwd=ROOT,
                output=Path(output.name),
            )
        )

        def check() -> bool:
            if (code := process.poll()) is not None:
                raise BenchError(f"{argv[2]} ended with {code}")
            return False

        try:
            yield check
        except BenchError as error:
            lines = Path(output.name).read_text(errors="replace").strip().splitlines()
            raise BenchError(f"{error}; its last line: {lines[-1] if lines else 'none'}") from error
        finally:
            process.stop(_GRACE_S)


def _increments(client: redis.Redis) -> int:
    """Return the number of counted words, from the server's statistics, which costs it nothing."""
    calls = client.info("commandstats").get("cmdstat_hincrby", {})
    return int(calls.get("calls", 0))


def _check_words(settings: Settings, what: str, count: int) -> None:
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        found = sum(map(int, client.hvals("bench-counts")))
    if found != count * WORDS:
        raise BenchError(f"{what}: {found:,} words were counted instead of {count * WORDS:,}")
