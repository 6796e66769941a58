"""Answers: calls that a bolt makes on its collector from its own threads, or between two steps.

An answer belongs to its tuple, not to the step that happens to run. Answers wait here, in order,
and leave with the next commit of the task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tiercel.spark_jobs.bolts.collecting import OutputCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import ACKED, OPEN, Tuple
from tiercel.spark_jobs.emitting.record import OutputRecorder, Record
from tiercel.spark_jobs.errors import AlreadyAckedError, ForeignTupleError
from tiercel.spark_jobs.reasons import raised, reason_given

_ENDED_MEANWHILE = "an answer from a thread names a tuple that was acked or has failed meanwhile"

# One answer, called with the collector of the step in which it takes effect.
Answer = Callable[[OutputRecorder], object]


class Answers:
    """Answers that wait for the next step of one copy of a bolt. Thread-safe.

    They end with the copy: its tuples are redelivered, or live on as other objects.
    """

    def __init__(self, component: str, wake: Callable[[], None]) -> None:
        """``wake`` makes the task look for answers; it is called from any thread."""
        self._component = component
        self._wake = wake
        self._lock = threading.Lock()
        # Answers that no step has taken yet, each with its tuples.
        self.waiting: list[tuple[Sequence[Tuple], Answer]] = []
        # "acked" or "failed", by the ``id`` of each tuple that a waiting answer acks or fails.
        self._ended: dict[int, str] = {}
        # Bytes of the waiting emissions.
        self._size = 0
        self._is_over = False

    def add(
        self, tuples: Sequence[Tuple], verb: str, answer: Answer, ends: str | None = None
    ) -> None:
        """Keep an answer for the next step.

        ``ends`` is "acked" or "failed" if the answer acks or fails its tuples. Raises
        ForeignTupleError, AlreadyAckedError.
        """
        with self._lock:
            is_first = self._add(tuples, verb, answer, ends)
        if is_first:
            self._wake()

    def emit(self, record: Record, size: int, tuples: Sequence[Tuple], answer: Answer) -> None:
        """Keep an emission of this size, as ``add`` does.

        Raises OutputLimitError if all waiting emissions together would be too large.
        """
        with self._lock:
            if self._size + size > record.outputs.limit:
                raise record.too_much()
            is_first = self._add(tuples, "anchors to", answer, None)
            self._size += size
        if is_first:
            self._wake()

    def _add(self, tuples: Sequence[Tuple], verb: str, answer: Answer, ends: str | None) -> bool:
        """Keep an answer; return True if no other answer waits."""
        for tup in tuples:
            self._check(tup, verb)
        if ends is not None:
            self._ended |= dict.fromkeys(map(id, tuples), ends)
        self.waiting.append((tuples, answer))
        return len(self.waiting) == 1

    def give(self, collector: OutputRecorder, record: Record) -> None:
        """Apply all answers in a step; an answer that raises fails its tuples.

        An answer also fails its tuples if one of them was acked or failed in the meantime.
        """
        # Hold the lock to the end: an answer to a tuple that was just acked must be refused.
        with self._lock:
            waiting, self.waiting = self.waiting, []
            self._ended.clear()
            self._size = 0
            record.answered += len(waiting)
            # Emissions of threads do not count against the output limit of the current call.
            left = record.most - record.size
            for tuples, answer in waiting:
                record.call()
                is_open = [tup for tup in tuples if tup.state == OPEN]
                try:
                    if len(is_open) == len(tuples):
                        answer(collector)
                    elif is_open:
                        raise AlreadyAckedError(_ENDED_MEANWHILE)
                except raised() as error:
                    reason, verdict = record.blame(error)
                    for tup in is_open:
                        record.fail(tup, reason, verdict)
            record.most = record.size + left

    def end(self) -> None:
        """Refuse all further answers."""
        with self._lock:
            self._is_over = True
            self.waiting.clear()
            self._ended.clear()

    def _check(self, tup: Tuple, verb: str) -> None:
        if not isinstance(tup, Tuple):
            raise ForeignTupleError(f"{self._component!r} {verb} {tup!r:.60}, which is no tuple")
        record = tup.origin.record
        if not isinstance(record, Record) or record.answers is not self:
            raise ForeignTupleError(
                f"{self._component!r} {verb} {tup!r}, which this task does not hold"
            )
        if self._is_over:
            raise ForeignTupleError(
                f"{self._component!r} {verb} {tup!r}, but its task was started again: its message "
                "is delivered again"
            )
        done = self._ended.get(id(tup))
        if done is None and tup.state != OPEN:
            done = "acked" if tup.state == ACKED else "failed"
        if done is not None:
            raise AlreadyAckedError(
                f"{self._component!r} {verb} {tup!r}, which it has {done} before"
            )


class AnyThreadRecorder(OutputRecorder, OutputCollector):
    """The ``OutputCollector`` of a ``Bolt``: any thread may call it, at any time.

    A call from the task's thread takes effect at once during a step; any other call takes effect
    with the next step.
    """

    def __init__(self, record: Record, answers: Answers) -> None:
        super().__init__(record)
        self._answers = answers
        # Applies answers directly to the record.
        self._now = OutputRecorder(record)

    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        if self._is_now():
            return super().emit(values, anchors, stream)
        output_stream = self._record.outputs.for_emit(stream, values)
        kept = output_stream.keep(values)
        tuples = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        size = output_stream.size(kept) if output_stream.subscribers else 0
        self._answers.emit(self._record, size, tuples, lambda now: now.emit(kept, tuples, stream))
        return []

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> None:
        if self._is_now():
            super().emit_direct(task, values, anchors, stream)
            return
        self._record.outputs.direct(task, stream, values)
        output_stream = self._streams[stream]
        kept = output_stream.keep(values)
        tuples = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        self._answers.emit(
            self._record,
            output_stream.size(kept),
            tuples,
            lambda now: now.emit_direct(task, kept, tuples, stream),
        )

    def ack(self, tup: Tuple) -> None:
        if self._is_now():
            super().ack(tup)
        else:
            self._answers.add((tup,), "acks", lambda now: now.ack(tup), "acked")

    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        if self._is_now():
            super().fail(tup, reason)
        else:
            self._answers.add((tup,), "fails", lambda now: now.fail(tup, reason), "failed")

    def reset_timeout(self, tup: Tuple) -> None:
        if self._is_now():
            super().reset_timeout(tup)
        else:
            self._answers.add((tup,), "resets the timeout of", lambda now: now.reset_timeout(tup))

    def report_error(self, error: BaseException | str) -> None:
        if self._is_now():
            super().report_error(error)
        else:
            message = reason_given(error)
            self._answers.add((), "reports", partial(OutputRecorder.report_error, error=message))

    def give_answers(self) -> None:
        """Apply the waiting answers in this step."""
        if self._answers.waiting:
            self._answers.give(self._now, self._record)

    def _is_now(self) -> bool:
        """Return True in the task's thread during the step, and apply the waiting answers first."""
        if self._record.thread != threading.get_ident():
            return False
        self.give_answers()
        return True
