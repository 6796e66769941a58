"""The record of one step of a bolt task, and the collectors that write it.

The step's effect on the trees is computed when the step ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import repeat
from types import FunctionType, MappingProxyType
from typing import Any, NoReturn, Protocol, cast

import numpy as np

from tiercel.acker.ids import mix
from tiercel.acker.inbox.chunk import Chunk, Rows
from tiercel.acker.ledger import Failure, Ids
from tiercel.acker.metrics.contract import ERRORS_A_WINDOW
from tiercel.spark_jobs.bolts.collecting import BasicCollector, OutputCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import ACKED, FAILED, OPEN, Origin, Tuple, tuples_of
from tiercel.spark_jobs.bolts.verdicts import (
    Failing,
    GivenBack,
    Reject,
    RetriedErrors,
    RetryLater,
    Verdict,
    again_after,
    failing_for,
    is_postponed,
    verdict_of,
)
from tiercel.spark_jobs.emitting.outputs import Outputs, OutputStream, TaskOutput, copy_numbers
from tiercel.spark_jobs.errors import (
    AlreadyAckedError,
    ForeignTupleError,
    OutputLimitError,
    TupleError,
    check_result,
)
from tiercel.spark_jobs.reasons import raised, reason_at, reason_given, reason_in

_MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
# The identities of a tuple's emissions lie STEP apart and are then multiplied by this: a whole
# ``mix`` would be slow.
SPREAD = 0xBF58476D1CE4E5B9
_TELL_RESETS_S = 1.0
_NO_ROOM = "other tuples of its step have emitted max_output_bytes"


class Item(Protocol):
    """One tuple or row of a task's input."""

    row: int
    state: int

    @property
    def seed(self) -> int: ...


class Once(Protocol):
    """Executes each tuple that has a key once, however often it is delivered."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of repeated, unkeyed and unsure tuples, see ``running.counting``."""

    def collector(self, record: Record) -> Any:
        """Return the collector of the step."""

    def guarded(self, execute: Callable[..., object]) -> Callable[..., None]:
        """Wrap ``execute`` so that it skips tuples that were applied before."""


class Record:
    """Record of one step of a bolt task."""

    # Notes an error of the bolt and its reason; returns the name of the error's counter.
    tell_raised: Callable[[BaseException, str], str] | None = None
    # True if tuples are retried in place: an emission whose anchors all failed is dropped.
    in_order = False
    # The bolt's ``Retry``; None: it has none.
    retry: RetriedErrors | None = None
    # Counts of a kind of bolts, see ``running.counting``.
    more_counts: Mapping[str, int] = MappingProxyType({})
    # Number of failed rows that are retried by the bolt's ``Retry``.
    retried = 0
    # Rows of the open tuples that were given up.
    open_rows: Sequence[int] = ()
    # The ``Answers`` of the bolt's copy, if the bolt may hold tuples.
    answers: object = None
    # Number of answers that took effect in this step.
    answered = 0
    # The thread that executes the step, if the bolt may hold tuples; 0 before and afterwards.
    thread = 0
    # Bytes emitted; a tuple sent to several tasks counts once.
    size = 0
    execute_ns = 0  # time in ``execute`` and ``flush``
    # The beginning of ``execute``, 0 before it, and the part of the time since then that was
    # already reported.
    began_ns = told_ns = 0
    # Time in a ``BasicBolt``'s calls that acked their tuple by returning.
    returned_ns = 0

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
        # A number that differs from step to step.
        self.salt = salt
        self.once: Once | None = None  # for bolts that execute each key once
        # The tuples held from earlier steps, then the input.
        self.tuples: list[Tuple] = []
        self.held = 0  # number of tuples held from earlier steps
        # True if all effects of the step are dropped.
        self.aborted = False
        # Time from the start of ``execute`` to the ack, by row, for bolts that ack by hand.
        self.took_ns: dict[int, int] = {}
        # The reason of each failed tuple, by its row.
        self.reasons: dict[int, str] = {}
        # The tuple being executed; None in ``flush``, and while a whole batch is executed.
        self.doing: Item | None = None
        # Number of signs of life: a slow task that begins batches or resets timeouts is working.
        self.signs = 0
        # Rows of tuples whose timeout resets are not reported yet.
        self.resets: list[int] = []
        # Reports the resets of these rows to the spouts at once; False if the report must wait.
        self.tell_resets: Callable[[Sequence[int]], bool] | None = None
        self._told_at = time.monotonic()
        # The first five errors.
        self.errors: list[str] = []
        self.emitted = 0
        self.transferred = 0
        # The most that ``size`` may reach during the current call.
        self.most = outputs.limit

    def receive(self, chunks: Sequence[Chunk], seeds: Ids, held: Sequence[Tuple]) -> None:
        """Add the held tuples, then the tuples of these chunks, in the order of ``seeds``."""
        self.held = row = len(held)
        origins: dict[Origin, Origin] = {}
        for at, tup in enumerate(held):
            origin = origins.get(tup.origin)
            if origin is None:
                origin = origins[tup.origin] = tup.origin.of(self, seeds)
            tup.origin = origin
            tup.row = at
        self.tuples = list(held)
        for chunk in chunks:
            self.tuples += tuples_of(chunk, row, seeds, self)
            row += chunk.values.num_rows

    @property
    def process_ns(self) -> int:
        """Time from the beginning of ``execute`` to the ack, summed over the acked tuples."""
        return self.returned_ns or sum(
            [took_ns for row, took_ns in self.took_ns.items() if row not in self.reasons]
        )

    @property
    def fresh(self) -> list[Tuple]:
        """The tuples of the input, without the held ones."""
        return self.tuples[self.held :] if self.held else self.tuples

    def abort(self, reason: str, verdict: Verdict | None = None) -> None:
        """Fail the input; tuples held from earlier steps stay held."""
        self.aborted = True
        for row in range(self.held):
            self.reasons.pop(row, None)
            self.verdicts.pop(row, None)
        self.resets.clear()
        self.took_ns.clear()
        self.outputs.clear()
        self.emitted = self.transferred = self.returned_ns = 0
        for tup in self.tuples:
            if tup.row < self.held:
                tup.state = OPEN
            elif tup.state != FAILED:
                self.fail(tup, reason, verdict)
        for row in self.open_rows:
            if row >= self.held:
                self.note(row, reason, verdict)

    def give_up(self, left: Sequence[Tuple]) -> None:
        """Drop the references to the open tuples ``left`` and keep only their rows, so that tuples
        with no other references are freed.
        """
        self.open_rows = [tup.row for tup in left]
        self.tuples = [tup for tup in self.tuples if tup.state != OPEN]

    def call(self) -> None:
        """Begin a call of the bolt, which may emit up to the output limit."""
        self.most = self.size + self.outputs.limit

    def begin_call(self) -> None:
        """Begin a call of a bolt whose steps cannot be cut short; raises GivenBack if earlier
        calls of the step have used up the output limit.
        """
        if self.size >= self.outputs.limit:
            raise GivenBack(0, _NO_ROOM)

    def mark(self) -> tuple[list[tuple[int, int]], int, int, int]:
        """Return the numbers of emissions so far, for ``rewind``."""
        marks = [task_output.mark() for task_output in self.outputs.task_outputs]
        return marks, self.size, self.emitted, self.transferred

    def rewind(self, mark: tuple[list[tuple[int, int]], int, int, int]) -> None:
        """Forget the emissions since the mark."""
        marks, self.size, self.emitted, self.transferred = mark
        for task_output, at in zip(self.outputs.task_outputs, marks, strict=True):
            task_output.rewind(at)

    def add(self, size: int) -> None:
        """Count the bytes of an emission before it is recorded; raises OutputLimitError."""
        if self.size + size > self.most:
            raise self.too_much()
        self.size += size

    def too_much(self) -> OutputLimitError:
        """Return the error for a call that exceeds the output limit."""
        return OutputLimitError.of(self.component, self.outputs.limit)

    def flush(self, flush: Callable[[], object]) -> bool:
        """Flush the bolt, and abort the step if ``flush`` raises.

        Returns False if the bolt's state can no longer be trusted.
        """
        self.call()
        try:
            if (result := flush()) is not None:
                check_result(result, flush)
        except raised() as error:
            self.abort(*self.blame(error, "flush"))
            return False
        return True

    def fail(self, tup: Item, reason: str, verdict: Verdict | None = None) -> None:
        """Mark the tuple as failed, also if it is acked."""
        tup.state = FAILED
        self.note(tup.row, reason, verdict)

    def note(self, row: int, reason: str, verdict: Verdict | None = None) -> None:
        """Keep the reason why a row fails, and the bolt's verdict; the first reason counts."""
        if row not in self.reasons:
            self.reasons[row] = reason
            if verdict is not None:
                self.verdicts[row] = verdict

    def failure(self, row: int, root: int, task: int) -> Failure:
        """Return the failure of ``root``, one of the roots of a failed row, for the ledger."""
        verdict = self.verdicts.get(row)
        return Failure(
            root=root,
            component=self.component,
            task=task,
            reason=self.reasons[row],
            reject=isinstance(verdict, Reject),
            retry_after_s=verdict.seconds if isinstance(verdict, RetryLater) else None,
            blame=not isinstance(verdict, RetryLater) or verdict.blame,
        )

    def reset(self, tup: Tuple) -> None:
        """Restart the timeout of the tuple.

        Resets are reported about once a second, even while a long call of the bolt goes on.
        """
        self.resets.append(tup.row)
        self.signs += 1
        now = time.monotonic()
        if self.tell_resets is not None and now - self._told_at >= _TELL_RESETS_S:
            self._told_at = now
            if self.tell_resets(self.resets):
                self.resets = []

    def let_go(self) -> None:
        """Drop the tuples and the callbacks once the step is committed, to break reference cycles.

        Otherwise only the garbage collector could free them: it ran once per 100,000 objects and
        stopped the process for a tenth of a second each time.
        """
        self.tuples = []
        self.tell_resets = None
        self.tell_raised = None

    @cached_property
    def executed(self) -> int:
        """Number of tuples in the input; cached, so read it only when the work is over."""
        return len(self.tuples) + len(self.open_rows) - self.held

    @cached_property
    def acked(self) -> Sequence[int] | Rows:
        """The rows of the acked tuples; cached, so read them only when the work is over."""
        return [tup.row for tup in self.tuples if tup.state == ACKED]

    @cached_property
    def verdicts(self) -> dict[int, Verdict]:
        """The bolt's verdicts by failed row; most failed rows have none."""
        return {}

    @property
    def postponed(self) -> int:
        """Number of tuples that the bolt postponed with ``RetryLater``."""
        return sum(map(is_postponed, self.verdicts.values()))

    @cached_property
    def replayed(self) -> set[int]:
        """The rows that are never retried in place, because their messages have failed or an
        emission anchored to them leaves the step.
        """
        return set()

    @cached_property
    def raised(self) -> Counter[str]:
        """Number of errors that the bolt raised, by the name of their counter."""
        return Counter()

    def blame(self, error: BaseException, where: str = "") -> Failing:
        """Note an error of the bolt; return its reason and the bolt's verdict.

        ``where`` names the method that raised it, unless that was ``execute``. Operators see the
        error unless tiercel itself gave the tuples back.
        """
        verdict: Verdict | None = verdict_of(error, where)
        if verdict is None:
            reason = reason_at(error, where)
            if self.tell_raised is not None:
                self.raised[self.tell_raised(error, reason)] += 1
            verdict = again_after(error, self.retry)
        else:
            # The bolt raised a verdict on purpose: its line of code is no bug.
            reason = reason_in(error, where)
        if not isinstance(verdict, GivenBack):
            self.report(reason)
        return reason, verdict

    def failing(self, reason: BaseException | str) -> Failing:
        """Return the failure of a tuple for the bolt's reason, which may be empty."""
        return failing_for(reason, self.retry)

    def report(self, message: str) -> bool:
        """Show an error to the topology's operators; False if this step has shown enough."""
        if len(self.errors) >= ERRORS_A_WINDOW:
            return False
        self.errors.append(message)
        return True


class BasicRecord(Record):
    """Record of a bolt whose calls ack their tuples by returning: all tuples that did not fail."""

    @cached_property
    def acked(self) -> Rows:
        rows = np.arange(len(self.tuples))
        return np.delete(rows, list(self.reasons)) if self.reasons else rows


class Recorder:
    """Base of the collectors.

    Each collector takes the name of its last base, the contract: Python's errors about a wrong call
    then name the class that users know.
    """

    def __init_subclass__(cls) -> None:
        contract = cls.__bases__[-1]
        for name, member in vars(cls).items():
            if isinstance(member, FunctionType) and hasattr(contract, name):
                member.__qualname__ = f"{contract.__qualname__}.{name}"
        cls.__name__ = contract.__name__

    def __init__(self, record: Record) -> None:
        self._record = record
        self._streams = record.outputs.streams

    def report_error(self, error: BaseException | str) -> None:
        self._record.report(reason_given(error))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a collector cannot be pickled: name its attribute in transient")


class BasicRecorder(Recorder, BasicCollector):
    """The ``BasicCollector`` of one step."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        # The tuple being executed; None in ``flush``.
        self.current: Tuple | None = None
        # Bytes that the call may still emit.
        self.room = record.outputs.limit

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        tup = self.current
        output_stream = self._streams.get(stream)
        if (
            output_stream is None
            or tup is None
            or (type(values) is not list and type(values) is not tuple)
            or len(values) != output_stream.width
            or output_stream.direct is not None
        ):
            output_stream = self._record.outputs.for_emit(stream, values)
            if tup is None:
                raise self._nothing_to_anchor_to()
        position = tup.emitted
        tup.emitted = position + 1
        task_output = output_stream.only
        if task_output is None:
            if (by_key := output_stream.by_key) is None:
                return self._emit_to_any(output_stream, values, position)
            try:
                [task] = by_key.known[by_key.key_of(values)]
            except (KeyError, TypeError):
                [task] = by_key(values, 0)
            task_output = output_stream.receivers[task]
        values = tuple(values)
        text = output_stream.text
        if text is not None and type(value := values[text]) is str and value.isascii():
            room = self.room - output_stream.fixed - len(value)
        else:
            room = self.room - output_stream.size(values)
        if room < 0:
            raise self._record.too_much()
        self.room = room
        task_output.values.append(values)
        task_output.rows.append(tup.row)
        task_output.positions.append(position)
        return [*task_output.named]

    def _emit_to_any(
        self, output_stream: OutputStream, values: Sequence[Any], position: int
    ) -> list[int]:
        """Emit on a stream whose tuples may go to several tasks, or to one by their identity."""
        record = self._record
        tup = cast(Tuple, self.current)
        identity = (tup.seed + position * STEP) * SPREAD & _MASK if output_stream.by_identity else 0
        values = output_stream.keep(values) if output_stream.mutable else tuple(values)
        chosen = output_stream.chosen(values, identity)
        if chosen:
            self._add(output_stream.size(values))
        tasks: list[int] = []
        for task_output in chosen:
            task_output.values.append(values)
            task_output.rows.append(tup.row)
            task_output.positions.append(position)
            tasks += task_output.named
        if output_stream.to_several and tup.lanes is not None:
            for task_output, number in zip(chosen, copy_numbers(chosen), strict=True):
                task_output.positions[-1] |= number
        record.emitted += 1
        record.transferred += len(chosen)
        return tasks

    def _add(self, size: int) -> None:
        """Count the bytes of an emission before it is recorded; raises OutputLimitError."""
        if size > self.room:
            raise self._record.too_much()
        self.room -= size

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        record = self._record
        tup = self.current
        task_output = record.outputs.direct(task, stream, values)
        if tup is None:
            raise self._nothing_to_anchor_to()
        output_stream = self._streams[stream]
        values = output_stream.keep(values)
        self._add(output_stream.size(values))
        task_output.values.append(values)
        task_output.rows.append(tup.row)
        task_output.positions.append(tup.emitted)
        tup.emitted += 1
        record.emitted += 1
        record.transferred += 1

    def _nothing_to_anchor_to(self) -> TupleError:
        return TupleError(
            f"{self._record.component!r} emits in flush, where there is no tuple to anchor to: use "
            "a Bolt for that"
        )


class OutputRecorder(Recorder, OutputCollector):
    """The ``OutputCollector`` of one step."""

    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        output_stream = self._record.outputs.for_emit(stream, values)
        anchored = self._anchors(anchors)
        identity = self._identity(anchored) if output_stream.by_identity else 0
        values = output_stream.keep(values)
        chosen = output_stream.chosen(values, identity)
        if chosen:
            self._record.add(output_stream.size(values))
        self._send(values, anchored, chosen)
        return [task for task_output in chosen for task in task_output.named]

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> None:
        task_output = self._record.outputs.direct(task, stream, values)
        anchored = self._anchors(anchors)
        kept = self._streams[stream].keep(values)
        self._record.add(self._streams[stream].size(kept))
        self._send(kept, anchored, [task_output])

    def ack(self, tup: Tuple) -> None:
        self._check(tup, "acks")
        tup.state = ACKED
        # Use wall-clock time: a held tuple may be acked in another process. The clock may be set
        # back.
        self._record.took_ns[tup.row] = max(0, time.time_ns() - tup.began_ns)

    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        self._check(tup, "fails")
        self._record.fail(tup, *self._record.failing(reason))

    def reset_timeout(self, tup: Tuple) -> None:
        self._check(tup, "resets the timeout of")
        self._record.reset(tup)

    def _anchors(self, anchors: Tuple | Iterable[Tuple]) -> tuple[Tuple, ...]:
        anchored = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        for anchor in anchored:
            self._check(anchor, "anchors to")
        return anchored

    def _identity(self, anchored: Sequence[Tuple]) -> int:
        """Return the emission's identity, for the groupings, from its tracked anchors if there are
        any.

        Tracked anchors are the same in each attempt. The seed of an untracked tuple is not: it
        depends on the tuple's place in the input.
        """
        record = self._record
        tracked = [anchor for anchor in anchored if anchor.row not in record.untracked]
        if not tracked:
            return mix(record.salt + record.emitted & _MASK)
        # Use a sum: a repeated step may have the anchors in another order, and the same anchor
        # twice must not cancel out.
        return sum(mix(anchor.seed + anchor.emitted * STEP & _MASK) for anchor in tracked) & _MASK

    def _send(
        self, values: tuple[Any, ...], anchored: Sequence[Tuple], chosen: Sequence[TaskOutput]
    ) -> None:
        """Record the emission with one position per anchor: the same anchor twice is two edges."""
        rows = []
        positions = []
        for anchor in anchored:
            rows.append(anchor.row)
            positions.append(anchor.emitted)
            anchor.emitted += 1
        several = len(chosen) > 1 and bool(anchored) and anchored[0].lanes is not None
        numbers = copy_numbers(chosen) if several else repeat(0)
        for task_output, number in zip(chosen, numbers, strict=False):
            task_output.values.append(values)
            task_output.rows += rows
            task_output.positions += (
                [position | number for position in positions] if number else positions
            )
            task_output.anchor_counts.append(len(rows))
            task_output.numbers.append(self._record.emitted)
        self._record.emitted += 1
        self._record.transferred += len(chosen)

    def _check(self, tup: Tuple, verb: str) -> None:
        if not isinstance(tup, Tuple):
            raise ForeignTupleError(
                f"{self._record.component!r} {verb} {tup!r:.60}, which is no tuple"
            )
        if tup.origin.record is not self._record:
            raise ForeignTupleError(
                f"{self._record.component!r} {verb} {tup!r}, which this task does not hold"
            )
        if tup.state != OPEN:
            done = "acked" if tup.state == ACKED else "failed"
            raise AlreadyAckedError(
                f"{self._record.component!r} {verb} {tup!r}, which it has {done} before"
            )
