"""The collectors that bolts are handed.

They record; what it means for the trees is computed when the task ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any, NoReturn, Protocol

from tiercel.acker.ids import mix
from tiercel.spark_jobs.bolts.bolt import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import ACKED, FAILED, OPEN, Tuple
from tiercel.spark_jobs.emitting.fold import Rows
from tiercel.spark_jobs.emitting.outputs import Outgoing, Outputs
from tiercel.spark_jobs.errors import AlreadySettledError, ForeignTupleError, TupleError
from tiercel.spark_jobs.reasons import reason_of

_MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
# Identities of a tuple's emissions: STEP apart and then spread, where a whole
# ``mix`` would be slow.
SPREAD = 0xBF58476D1CE4E5B9
_ERRORS_KEPT = 5
_TELL_RESETS_S = 1.0
_PLAIN = (list, tuple)


class Item(Protocol):
    """One tuple of a task's input, or one row."""

    row: int
    seed: int
    state: int


class Record:
    """Record of what one bolt task did in one step."""

    def __init__(
        self,
        component: str,
        outputs: Outputs,
        untracked: AbstractSet[int] = frozenset(),
        salt: int = 0,
    ) -> None:
        self.component = component
        self.outputs = outputs
        # Rows of tuples that are in no tree.
        self.untracked = untracked
        # Differs from step to step.
        self.salt = salt
        # The tuples that the task holds from before, then its input.
        self.tuples: list[Tuple] = []
        # Number of tuples held from earlier steps.
        self.held = 0
        # Nothing of what it did counts: it is again what it was before the step.
        self.aborted = False
        # Row of each failed tuple to why.
        self.reasons: dict[int, str] = {}
        # The tuple in ``execute``; None in ``flush``, and while a whole batch is executed.
        self.doing: Item | None = None
        # Of life: a task that begins a batch or resets timeouts works, however long it takes.
        self.signs = 0
        # Rows of tuples whose timeouts begin again, not reported yet.
        self.resets: list[int] = []
        # Passes rows on to the spouts at once; False if that has to wait.
        self.tell_resets: Callable[[Sequence[int]], bool] | None = None
        self._told_at = time.monotonic()
        # The first five.
        self.errors: list[str] = []
        self.emitted = 0
        self.transferred = 0
        # Time in ``execute`` and ``flush``.
        self.execute_ns = 0
        # Of a ``BasicBolt``: time of the calls that acked their tuple by returning.
        self.returned_ns = 0

    @property
    def process_ns(self) -> int:
        """Time from the beginning of ``execute`` to the ack, summed over the acked tuples."""
        return self.returned_ns or sum(tup.process_ns for tup in self.tuples if tup.state == ACKED)

    @property
    def fresh(self) -> list[Tuple]:
        """The task's input."""
        return self.tuples[self.held :] if self.held else self.tuples

    def abort(self, reason: str) -> None:
        """Fail the input; the task still holds what it held before."""
        self.aborted = True
        for tup in self.tuples[: self.held]:
            tup.state = OPEN
            self.reasons.pop(tup.row, None)
        self.resets.clear()
        self.outputs.clear()
        self.emitted = self.transferred = self.returned_ns = 0
        for tup in self.fresh:
            if tup.state != FAILED:
                self.fail(tup, reason)

    def fail(self, tup: Item, reason: str) -> None:
        """Mark the tuple as failed, whatever it was before."""
        tup.state = FAILED
        self.reasons.setdefault(tup.row, reason)

    def reset(self, tup: Tuple) -> None:
        """Start the timeout of the tuple again: reported about once a second while the bolt works,
        which may be long.
        """
        self.resets.append(tup.row)
        self.signs += 1
        now = time.monotonic()
        if self.tell_resets is not None and now - self._told_at >= _TELL_RESETS_S:
            self._told_at = now
            if self.tell_resets(self.resets):
                self.resets = []

    @property
    def executed(self) -> int:
        """Number of tuples in the input."""
        return len(self.fresh)

    @cached_property
    def acked(self) -> Sequence[int] | Rows:
        """The rows of the acked tuples. To be asked for when the work is over."""
        return [tup.row for tup in self.tuples if tup.state == ACKED]

    def report(self, message: str) -> bool:
        """Show an error to the topology's operators; False if there are enough of them already."""
        if len(self.errors) >= _ERRORS_KEPT:
            return False
        self.errors.append(message)
        return True


class _Collector:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._outlets = record.outputs.outlets

    def report_error(self, error: BaseException | str) -> None:
        """Show an error to the topology's operators; the tuple is not affected."""
        self._record.report(reason_of(error))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a collector is handed in and never stored: it is another one in each step")


class BasicCollector(_Collector):
    """For ``BasicBolt``: anchors what is emitted to the tuple that is being executed."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        # The tuple in ``execute``; None in ``flush``.
        self.current: Tuple | None = None

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        """Emit a tuple; returns the ids of the tasks that receive it.

        Raises BadValuesError, UnknownStreamError.
        """
        record = self._record
        tup = self.current
        outlet = self._outlets.get(stream)
        if (
            outlet is None
            or outlet.direct is not None
            or type(values) not in _PLAIN
            or len(values) != outlet.width
        ):
            outlet = record.outputs.outlet(stream, values)
        if tup is None:
            raise self._nothing_to_anchor_to()
        position = tup.emitted
        row = tup.row
        tup.emitted = position + 1
        identity = ((tup.seed + position * STEP) * SPREAD) & _MASK if outlet.by_identity else 0
        values = outlet.keep(values) if outlet.mutable else tuple(values)
        # All choices first: if one raises and the bolt goes on nevertheless, no task has
        # received the tuple.
        chosen: list[Outgoing] = []
        for choose, made in outlet.subscribers:
            for task in choose(values, identity):
                chosen.append(made[task])  # noqa: PERF401 - a comprehension is a call, until Python 3.12
        tasks: list[int] = []
        for outgoing in chosen:
            outgoing.values.append(values)
            outgoing.rows.append(row)
            outgoing.positions.append(position)
            tasks.append(outgoing.target)
        record.emitted += 1
        record.transferred += len(tasks)
        return tasks

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple to one task, on a direct stream.

        Raises BadValuesError, UnknownStreamError, DirectStreamError.
        """
        record = self._record
        tup = self.current
        outgoing = record.outputs.direct(task, stream, values)
        if tup is None:
            raise self._nothing_to_anchor_to()
        outgoing.values.append(self._outlets[stream].keep(values))
        outgoing.rows.append(tup.row)
        outgoing.positions.append(tup.emitted)
        tup.emitted += 1
        record.emitted += 1
        record.transferred += 1

    def _nothing_to_anchor_to(self) -> TupleError:
        component = self._record.component
        return TupleError(
            f"{component!r} emits in flush, where there is no tuple to anchor to: use a "
            "Bolt for that"
        )


class OutputCollector(_Collector):
    """For ``Bolt``: anchors, acks and fails by hand."""

    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        """Emit a tuple; returns the ids of the tasks that receive it.

        It joins the trees of its ``anchors``, one tuple or several: if it fails, the messages of
        all of them do. Without anchors it belongs to no tree, and nothing is replayed if it is
        lost. Raises BadValuesError, UnknownStreamError, AlreadySettledError for an anchor that was
        acked or failed, ForeignTupleError.
        """
        outlet = self._record.outputs.outlet(stream, values)
        anchored = self._anchors(anchors)
        identity = self._identity(anchored)
        values = outlet.keep(values)
        chosen = [
            made[task] for choose, made in outlet.subscribers for task in choose(values, identity)
        ]
        self._send(values, anchored, chosen)
        return [outgoing.target for outgoing in chosen]

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Emit a tuple to one task, on a direct stream; else as ``emit``.

        Raises DirectStreamError as well.
        """
        outgoing = self._record.outputs.direct(task, stream, values)
        self._send(self._outlets[stream].keep(values), self._anchors(anchors), [outgoing])

    def ack(self, tup: Tuple) -> None:
        """Say that the bolt is done with the tuple.

        Raises AlreadySettledError, ForeignTupleError.
        """
        self._check(tup, "acks")
        tup.state = ACKED
        # Wall-clock time: what is held may be acked in another process. It may be set back.
        tup.process_ns = max(0, time.time_ns() - tup.began_ns)

    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        """Fail the tuple: the message at its root fails at once and is delivered again.

        Raises AlreadySettledError, ForeignTupleError.

        Of the reason one line is kept.
        """
        self._check(tup, "fails")
        self._record.fail(tup, (reason_of(reason) if reason else "") or "failed by the bolt")

    def reset_timeout(self, tup: Tuple) -> None:
        """Start the timeout of the tuple's messages again.

        Raises AlreadySettledError, ForeignTupleError.
        """
        self._check(tup, "resets the timeout of")
        self._record.reset(tup)

    def _anchors(self, anchors: Tuple | Iterable[Tuple]) -> tuple[Tuple, ...]:
        anchored = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        for anchor in anchored:
            self._check(anchor, "anchors to")
        return anchored

    def _identity(self, anchored: Sequence[Tuple]) -> int:
        """Of the emission, for the groupings; it rests on tracked anchors alone
        where there are any.

        Those are the same at each attempt. An untracked tuple's seed is not: it comes from the
        place in the input.
        """
        record = self._record
        tracked = (
            [anchor for anchor in anchored if anchor.row not in record.untracked]
            if record.untracked
            else anchored
        )
        if not tracked:
            return mix(record.salt + record.emitted & _MASK)
        # A sum: the order of the anchors may differ when a step is repeated, and the same anchor
        # twice must not cancel out.
        return sum(mix(anchor.seed + anchor.emitted * STEP & _MASK) for anchor in tracked) & _MASK

    def _send(
        self, values: tuple[Any, ...], anchored: Sequence[Tuple], chosen: Sequence[Outgoing]
    ) -> None:
        """Record the emission. One position per anchor: the same anchor twice gives two edges."""
        rows = []
        positions = []
        for anchor in anchored:
            rows.append(anchor.row)
            positions.append(anchor.emitted)
            anchor.emitted += 1
        for outgoing in chosen:
            outgoing.values.append(values)
            outgoing.rows += rows
            outgoing.positions += positions
            outgoing.anchor_counts.append(len(rows))
            outgoing.numbers.append(self._record.emitted)
        self._record.emitted += 1
        self._record.transferred += len(chosen)

    def _check(self, tup: Tuple, verb: str) -> None:
        if not isinstance(tup, Tuple):
            raise ForeignTupleError(
                f"{self._record.component!r} {verb} {tup!r:.60}, which is no tuple"
            )
        if tup.record is not self._record:
            raise ForeignTupleError(
                f"{self._record.component!r} {verb} {tup!r}, which this task does not hold"
            )
        if tup.state != OPEN:
            done = "acked" if tup.state == ACKED else "failed"
            raise AlreadySettledError(
                f"{self._record.component!r} {verb} {tup!r}, which it has {done} before"
            )
