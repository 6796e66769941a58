"""The way of one message through the package: the files it enters, from delivery to ack."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from tests.support.fake_broker import FakeChannel, FakeLink, Message
from tests.support.pump import RUN, Pump
from tests.support.spout_worker import MemoryWorker
from tiercel import QueueSpout, Topology
from tiercel.acker.ids import task_of
from tiercel.spark_jobs.topology.graph import line_at
from tiercel.workers.spout.admission import Admission, Shape
from tiercel.workers.spout.loop import SpoutSettings
from tiercel.workers.testing.spouts import OutcomesInOrder

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("acker", "queues", "spark_jobs", "workers")


@dataclass
class Way:
    """Calls of functions of the package, in order, each with its file."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Return the files in order of entry."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    @property
    def moves(self) -> int:
        """Count the calls that came in another file than the previous call."""
        return sum(one != other for (one, _), (other, _) in pairwise(self.calls))

    def without(self, *places: str) -> Way:
        """Return the way without calls into files that begin with these paths."""
        return Way([call for call in self.calls if not call[0].startswith(places)])

    def __str__(self) -> str:
        """Return each file with its calls, in order of entry; then the sums."""
        calls = Counter(file for file, _ in self.calls)
        rows = [f"{calls[file]:5}  {file}" for file in self.files]
        functions = len(set(self.calls))
        return "\n".join(
            [*rows, f"{len(self.files)} files, {self.moves} moves, {functions} functions"]
        )

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow this thread's calls until the end of the block."""
        names: dict[str, str | None] = {}

        def name_of(path: str) -> str | None:
            file = Path(path).resolve()
            if path.startswith("<") or not file.is_relative_to(ROOT):
                return None
            name = file.relative_to(ROOT).as_posix()
            return name if name.partition("/")[0] in FOLDERS else None

        def follow(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                code = frame.f_code
                if code.co_filename not in names:
                    names[code.co_filename] = name_of(code.co_filename)
                if (name := names[code.co_filename]) is not None:
                    self.calls.append((name, code.co_qualname))

        before = sys.getprofile()
        sys.setprofile(follow)
        try:
            yield
        finally:
            sys.setprofile(before)


class OneMessage:
    """A topology with one queue spout, in this thread, on twins and a fake broker."""

    def __init__(self, topology: Topology) -> None:
        timeout = timedelta(seconds=30)
        settings = SpoutSettings(
            message_timeout=timeout,
            admission=Admission.for_topology(None, timeout, Shape.of(topology)),
            grace=timedelta(0),
        )
        self._now = 0.0
        [spec] = topology.spouts.values()
        assert isinstance(spec.spout, QueueSpout)
        self._pump = Pump(topology)
        self._worker = MemoryWorker(
            topology,
            spec.spout,
            settings,
            ledger=self._pump.ledger,
            inboxes=self._pump.inboxes,
            outcomes=OutcomesInOrder(self._pump.ledger, 1),
            clock=lambda: self._now,
        )
        self._worker.attend(RUN)
        self._queue: deque[Message] = deque()
        with patch("tiercel.queues.consuming.consumer.Link", FakeLink):
            self._worker.task.open({"amqp_url": "amqp://host"}, self._worker.context)
        consumer = spec.spout._consumer
        assert consumer is not None
        self._channel = consumer._link.channel = FakeChannel(self._queue)
        consumer.opened(self._channel)
        self._worker.task.turn()

    def way(self, body: bytes) -> Way:
        """Deliver a message; return its way until it is acked.

        Call it a few times first: a task prepares its bolt at its first message.
        """
        way = Way()
        # Let the next batch begin. Timed work, at most twice per second, does not fall due yet.
        self._now += 0.05
        self._queue.append(Message(body))

        def followed(call: Callable[[], object]) -> None:
            with way.followed():
                call()

        followed(lambda: self._channel.deliver(1))
        followed(self._worker.task.turn)
        while waiting := [task for task in self._pump.tasks if self._waits_at(task)]:
            for task in waiting:
                followed(self._pump.attempts[task].turn)
        followed(self._worker.task.turn)
        assert not self._channel.unacked, "it was not acked"
        return way

    def _waits_at(self, task: int) -> int:
        """Return the number of tuples for a task; tuples in a line go to the first asker."""
        line = line_at(self._pump.around.topology, task)
        is_first = line is not None and task == task_of(line)
        places = [task, line] if line is not None and is_first else [task]
        return sum(one.tuples for one in self._pump.inboxes.figures(places).values())
