"""The collectors that bolts are handed. They record; what it means for the trees is computed when the task ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from acker.ids import mix
from spark_jobs.bolt import DEFAULT_STREAM
from spark_jobs.errors import AlreadySettledError, ForeignTupleError, TupleError
from spark_jobs.outputs import Outputs
from spark_jobs.tuples import ACKED, FAILED, OPEN, Tuple

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_SPREAD = 0xBF58476D1CE4E5B9


class Record:
    """What one bolt task did with its input in one micro-batch."""

    def __init__(self, component: str, outputs: Outputs) -> None:
        self.component, self.outputs = component, outputs
        self.tuples: list[Tuple] = []
        """The task's input."""
        self.reasons: dict[int, str] = {}
        """Row of each failed tuple to why."""
        self.resets: list[int] = []
        self.errors: list[str] = []
        self.emitted = 0
        self.transferred = 0
        self.execute_ns = 0

    def fail(self, tup: Tuple, reason: str) -> None:
        """The tuple failed, whatever it was before."""
        tup.state = FAILED
        self.reasons.setdefault(tup.row, reason)


class _Collector:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._outlets = record.outputs.outlets

    def report_error(self, error: BaseException | str) -> None:
        """Show an error to whoever watches the topology; the tuple is not affected."""
        self._record.errors.append(error if isinstance(error, str) else f"{type(error).__name__}: {error}")


class BasicCollector(_Collector):
    """For ``BasicBolt``: anchors what is emitted to the tuple that is being executed."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.current: Tuple | None = None
        """The tuple in ``execute``; None in ``flush``."""

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        """Emit a tuple; returns the ids of the tasks that receive it. Raises BadValuesError, UnknownStreamError."""
        record, tup = self._record, self.current
        outlet = self._outlets.get(stream)
        if outlet is None or len(values) != outlet.width or isinstance(values, str):
            outlet = record.outputs.outlet(stream, values)
        if tup is None:
            raise TupleError(f"{record.component!r} emits in flush, where there is no tuple to anchor to: use a Bolt for that")
        position = tup.emitted
        tup.emitted = position + 1
        identity = ((tup.seed + position * _STEP) * _SPREAD) & _MASK
        values = tuple(values)
        tasks: list[int] = []
        for choose, made in outlet.subscribers:
            for task in choose(values, identity):
                outgoing = made[task]
                outgoing.values.append(values)
                outgoing.rows.append(tup.row)
                outgoing.positions.append(position)
                tasks.append(task)
        record.emitted += 1
        record.transferred += len(tasks)
        return tasks


class OutputCollector(_Collector):
    """For ``Bolt``: anchors, acks and fails by hand."""

    def emit(self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM) -> list[int]:
        """Emit a tuple; returns the ids of the tasks that receive it.

        It joins the trees of its ``anchors``, one tuple or several: if it fails, the messages of all of them do. Without
        anchors it belongs to no tree, and nothing is replayed if it is lost. Raises BadValuesError, UnknownStreamError,
        AlreadySettledError for an anchor that was acked or failed, ForeignTupleError.
        """
        record = self._record
        outlet = record.outputs.outlet(stream, values)
        anchored = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        for anchor in anchored:
            self._check(anchor, "anchors to")
        record.emitted += 1
        positions = []
        identity = mix(record.emitted) if not anchored else 0
        for anchor in anchored:
            positions.append(anchor.emitted)
            identity ^= anchor.seed + anchor.emitted * _STEP
            anchor.emitted += 1
        values = tuple(values)
        tasks: list[int] = []
        for choose, made in outlet.subscribers:
            for task in choose(values, (identity * _SPREAD) & _MASK):
                outgoing = made[task]
                outgoing.values.append(values)
                outgoing.rows.extend(anchor.row for anchor in anchored)
                outgoing.positions.extend(positions)
                outgoing.anchor_counts.append(len(anchored))
                tasks.append(task)
        record.transferred += len(tasks)
        return tasks

    def ack(self, tup: Tuple) -> None:
        """Say that the bolt is done with the tuple. Raises AlreadySettledError, ForeignTupleError."""
        self._check(tup, "acks")
        tup.state = ACKED

    def fail(self, tup: Tuple, reason: str = "") -> None:
        """The message at the root fails at once and is delivered again. Raises AlreadySettledError, ForeignTupleError."""
        self._check(tup, "fails")
        self._record.fail(tup, reason or "failed by the bolt")

    def reset_timeout(self, tup: Tuple) -> None:
        """The timeout of the tuple's messages begins again. Raises AlreadySettledError, ForeignTupleError."""
        self._check(tup, "resets the timeout of")
        self._record.resets.append(tup.row)

    def _check(self, tup: Tuple, verb: str) -> None:
        if not isinstance(tup, Tuple):
            raise ForeignTupleError(f"{self._record.component!r} {verb} {tup!r:.60}, which is no tuple")
        if tup.record is not self._record:
            raise ForeignTupleError(f"{self._record.component!r} {verb} {tup!r}, which this task did not receive")
        if tup.state != OPEN:
            done = "acked" if tup.state == ACKED else "failed"
            raise AlreadySettledError(f"{self._record.component!r} {verb} {tup!r}, which it has {done} before")
