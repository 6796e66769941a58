"""A probe that records a process's deliveries and acks over time.

It is the same in tiercel's spout workers and in the peers that use pika. It wraps the methods that
every pika consumer calls on a channel: ``basic_consume``, ``basic_ack``, ``basic_reject`` and
``basic_nack``. An ack counts when it is handed to pika. The probe costs well below a microsecond
per message, the same in all processes.

A process calls ``start_probe()``, which does nothing unless BENCH_PROBE names a folder. Each
process writes ``progress-<pid>`` there: lines of monotonic time, deliveries, acks, and messages
given back. With BENCH_PROBE_TIMED it also writes ``latency-<pid>``: pairs of doubles, the scheduled
time of a message and the seconds from then to its ack. The publisher writes the scheduled time into
the message id, in microseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = "BENCH_PROBE"
TIMED = "BENCH_PROBE_TIMED"
_EVERY_S = 0.025
# Bytes at the end of a file that contain several whole lines.
_TAIL = 400


class ProcessSample(NamedTuple):
    """Progress of a process at one time."""

    at: float
    delivered: int
    acked: int
    returned: int


class Tags:
    """The delivery tags of one channel."""

    def __init__(self) -> None:
        self.scheduled: dict[int, int] = {}
        self._low = 1
        self._above: set[int] = set()

    def settle(self, tag: int, *, multiple: bool) -> range | list[int]:
        """Return the tags that this call settles."""
        if not multiple:
            self._above.add(tag)
            settled: range | list[int] = [tag]
        else:
            settled = [each for each in range(self._low, tag + 1) if each not in self._above]
            self._above.difference_update(range(self._low, tag + 1))
            self._low = max(self._low, tag + 1)
        while self._low in self._above:
            self._above.remove(self._low)
            self._low += 1
        return settled


class Probe:
    """The counts of one process.

    The connection's thread makes the calls, and a thread of the probe writes the counts.
    """

    def __init__(self, folder: Path, *, timed: bool) -> None:
        self._timed = timed
        self._delivered = self._acked = self._returned = 0
        self._latencies = array("d")
        self._progress = (folder / f"progress-{os.getpid()}").open("ab", buffering=0)
        self._latency = (folder / f"latency-{os.getpid()}").open("ab", buffering=0)
        threading.Thread(target=self._write, name="probe", daemon=True).start()

    def install(self) -> None:
        """Probe all channels of this process from now on."""
        from pika.channel import Channel  # noqa: PLC0415 - Celery's process has no pika

        consume = Channel.basic_consume
        ack = Channel.basic_ack
        reject = Channel.basic_reject
        nack = Channel.basic_nack

        def basic_consume(
            channel: Any, queue: str, on_message_callback: Callable[..., None], **options: Any
        ) -> Any:
            tags = self._tags(channel)

            def delivered(channel: Any, method: Any, properties: Any, body: bytes) -> None:
                self._delivered += 1
                if self._timed and (properties.message_id or "").isdecimal():  # not in a warm-up
                    tags.scheduled[method.delivery_tag] = int(properties.message_id)
                on_message_callback(channel, method, properties, body)

            return consume(channel, queue, delivered, **options)

        def basic_ack(channel: Any, delivery_tag: int = 0, multiple: bool = False) -> Any:
            self._settle(channel, delivery_tag, multiple=multiple, acked=True)
            return ack(channel, delivery_tag, multiple)

        def basic_reject(channel: Any, delivery_tag: int = 0, requeue: bool = True) -> Any:
            self._settle(channel, delivery_tag, multiple=False, acked=False)
            return reject(channel, delivery_tag, requeue)

        def basic_nack(
            channel: Any, delivery_tag: int = 0, multiple: bool = False, requeue: bool = True
        ) -> Any:
            self._settle(channel, delivery_tag, multiple=multiple, acked=False)
            return nack(channel, delivery_tag, multiple, requeue)

        Channel.basic_consume = basic_consume
        Channel.basic_ack = basic_ack
        Channel.basic_reject = basic_reject
        Channel.basic_nack = basic_nack

    @staticmethod
    def _tags(channel: Any) -> Tags:
        found: Tags | None = vars(channel).get("bench_tags")
        if found is None:
            found = channel.bench_tags = Tags()
        return found

    def _settle(self, channel: Any, tag: int, *, multiple: bool, acked: bool) -> None:
        tags = self._tags(channel)
        settled = tags.settle(tag, multiple=multiple)
        if self._timed:
            now = time.monotonic()
            for each in settled:
                scheduled = tags.scheduled.pop(each, None)
                if acked and scheduled is not None:
                    self._latencies.extend((scheduled / 1e6, now - scheduled / 1e6))
        if acked:
            self._acked += len(settled)
        else:
            self._returned += len(settled)

    def _write(self) -> None:
        last = (-1, -1, -1)
        while True:
            time.sleep(_EVERY_S)
            now = (self._delivered, self._acked, self._returned)
            if now == last:
                continue
            last = now
            if self._latencies:
                latencies, self._latencies = self._latencies, array("d")
                self._latency.write(latencies.tobytes())
            # Write the progress last, so that a reader of it finds the latencies of all its acks.
            self._progress.write(f"{time.monotonic():.4f} {now[0]} {now[1]} {now[2]}\n".encode())


def start_probe() -> None:
    """Probe this process if the environment asks for it."""
    if FOLDER in os.environ:
        Probe(Path(os.environ[FOLDER]), timed=TIMED in os.environ).install()


@dataclass(frozen=True)
class ProbeResults:
    """The results that the probes of all processes wrote into a folder."""

    folder: Path

    def environment(self, *, timed: bool) -> Mapping[str, str]:
        """Return the environment with which a process writes into the folder."""
        return {FOLDER: str(self.folder), **({TIMED: "1"} if timed else {})}

    def last(self) -> ProcessSample:
        """Return the last sample, summed over all processes; cheap enough to call often."""
        ends = [
            end for path in self.folder.glob("progress-*") for end in _read(path, tail=_TAIL)[-1:]
        ]
        return ProcessSample(
            at=max((end.at for end in ends), default=0.0),
            delivered=sum(end.delivered for end in ends),
            acked=sum(end.acked for end in ends),
            returned=sum(end.returned for end in ends),
        )

    def samples(self) -> list[ProcessSample]:
        """Return all samples, summed over all processes, in ascending order of time."""
        changes = []
        for path in self.folder.glob("progress-*"):
            before = ProcessSample(0.0, 0, 0, 0)
            for now in _read(path):
                more = (
                    now.delivered - before.delivered,
                    now.acked - before.acked,
                    now.returned - before.returned,
                )
                changes.append((now.at, *more))
                before = now
        together = []
        delivered = 0
        acked = 0
        returned = 0
        for at, *more_of in sorted(changes):
            delivered = delivered + more_of[0]
            acked = acked + more_of[1]
            returned = returned + more_of[2]
            together.append(ProcessSample(at, delivered, acked, returned))
        return together

    def latencies(self) -> np.ndarray:
        """Return rows of scheduled time and seconds to the ack."""
        parts = [
            np.fromfile(path, np.float64).reshape(-1, 2) for path in self.folder.glob("latency-*")
        ]
        return np.concatenate(parts) if parts else np.empty((0, 2))


def _read(path: Path, tail: int | None = None) -> list[ProcessSample]:
    """Read the samples of a file, or only of its last ``tail`` bytes without a partial line."""
    with path.open("rb") as file:
        if tail is not None and path.stat().st_size > tail:
            file.seek(-tail, os.SEEK_END)
            file.readline()
        rows = [line.split() for line in file.read().rpartition(b"\n")[0].splitlines()]
    return [
        ProcessSample(float(at), int(delivered), int(acked), int(back))
        for at, delivered, acked, back in rows
    ]


@contextmanager
def environment(more: Mapping[str, str]) -> Iterator[None]:
    """Add ``more`` to the environment of this process and its children within the block."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
