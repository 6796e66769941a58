"""One call: a tuple under way with its outcome, its collector, and the contract of its caller.

A collector checks at once what a call emits, and keeps it until the step that the call ends in.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiercel.acker.inbox.chunk import Chunk, Lineage
from tiercel.spark_jobs.bolts.collecting import AsyncCollector, BasicCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple, tuples_of
from tiercel.spark_jobs.emitting.collectors import Recorder
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.errors import OutputLimitError, TupleError


@dataclass(frozen=True, slots=True)
class CallEmission:
    """One emission, as the bolt gave it."""

    values: tuple[Any, ...]
    stream: str
    # Of a direct stream: the receiver.
    task: int | None = None


@dataclass(eq=False, kw_only=True, slots=True)
class Call:
    """One call of ``execute``. Its outcome belongs to the caller's threads until it has ended."""

    tup: Tuple
    # Of the chunk that has the tuple, whose row there is ``tup.row``; None: the step has it.
    lineage: Lineage | None = None
    # Position of that chunk in the inbox; None: the task's own tick, or a call within a step.
    position: str | None = None
    # In the order of arrival, from 1 on; given by the flight.
    number: int = 0
    emissions: list[CallEmission] = field(default_factory=list)
    # Reported by the bolt, without effect on the tuple.
    reports: list[BaseException | str] = field(default_factory=list)
    # Raised by it.
    error: BaseException | None = None
    # Bytes that it has emitted.
    size: int = 0
    took_ns: int = 0
    ended: bool = False


def calls_of(chunk: Chunk, rows: Sequence[int], position: str) -> list[Call]:
    """Return a call for each of these rows of a chunk."""
    lineage = chunk.lineage
    tuples = tuples_of(chunk, 0, lineage.seeds.tolist())
    return [Call(tup=tuples[row], lineage=lineage, position=position) for row in rows]


def rows_of(calls: Sequence[Call]) -> dict[str, list[int]]:
    """Return the rows of each position, in the order of the calls."""
    rows: dict[str, list[int]] = {}
    for call in calls:
        rows.setdefault(call.position or "", []).append(call.tup.row)
    return rows


class CallRecorder(Recorder):
    """Base of these collectors. One thread at a time, and no other's record: the step's."""

    def __init__(self, component: str, outputs: Outputs, call: Call | None) -> None:
        """Without a ``call``: for ``flush``."""
        self._component = component
        self._outputs = outputs
        self._call = call
        # Reported in ``flush``.
        self.reports: list[BaseException | str] = [] if call is None else call.reports

    def report_error(self, error: BaseException | str) -> None:
        self.reports.append(error)

    def _keep(self, values: Sequence[Any], stream: str) -> None:
        call = self._under_way()
        output_stream = self._outputs.for_emit(stream, values)
        if output_stream.subscribers:
            self._add(call, output_stream.size(values))
        call.emissions.append(CallEmission(output_stream.keep(values), stream))

    def _keep_direct(self, task: int, values: Sequence[Any], stream: str) -> None:
        call = self._under_way()
        self._outputs.direct(task, stream, values)
        output_stream = self._outputs.streams[stream]
        self._add(call, output_stream.size(values))
        call.emissions.append(CallEmission(output_stream.keep(values), stream, task))

    def _add(self, call: Call, size: int) -> None:
        if call.size + size > self._outputs.limit:
            raise OutputLimitError.of(self._component, self._outputs.limit)
        call.size += size

    def _under_way(self) -> Call:
        if self._call is None:
            raise TupleError(
                f"{self._component!r} emits in flush, where there is no tuple to anchor to: use a "
                "Bolt for that"
            )
        if self._call.ended:
            raise TupleError(
                f"{self._component!r} emits after its execute has ended: await all that emits"
            )
        return self._call


class AsyncRecorder(CallRecorder, AsyncCollector):
    """The ``AsyncCollector`` of one call."""

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._keep(values, stream)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._keep_direct(task, values, stream)


class ThreadRecorder(CallRecorder, BasicCollector):
    """The ``BasicCollector`` of one call in a thread; the tasks are not known yet."""

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        self._keep(values, stream)
        return []

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._keep_direct(task, values, stream)


# ``execute`` of a bolt.
Execute = Callable[[Any, Any], Awaitable[None] | None]
# Told of each call that has ended, by any thread.
Ended = Callable[[Call], None]


class UnderWay(Protocol):
    """Calls of one flight, for a caller that waits for them."""

    @property
    def changed(self) -> threading.Event:
        """Set when a call has ended, and when the task is woken."""
        ...

    @property
    def under_way(self) -> int:
        """Number of calls that have begun and not ended."""
        ...


class Caller(Protocol):
    """Runs the calls of one bolt task. Used by the task's thread, but ``hanging``."""

    def time(self) -> float:
        """Clock of the calls, in seconds."""
        ...

    def recorder(self, call: Call | None) -> CallRecorder:
        """The collector of a call; of ``flush`` without one."""
        ...

    def start(self, execute: Execute, calls: Sequence[Call], ended: Ended) -> None:
        """Begin these calls. Each ends by itself, or is cancelled when it takes too long, and is
        given to ``ended`` once.
        """
        ...

    def pause(self, calls: UnderWay, seconds: float) -> None:
        """Wait until something changes, at most so long. May return early."""
        ...

    def do(self, method: Callable[..., Awaitable[None] | None], *arguments: object) -> None:
        """Run another method of the bolt to its end. Raises what it raises."""
        ...

    def hanging(self) -> Call | None:
        """The call to end the process for, if it goes on for as long as a call may last. Any
        thread.
        """
        ...

    def cancel(self) -> bool:
        """Cancel the calls that are under way, and wait for them a moment. None is started later.

        Returns False if some of them go on. Idempotent.
        """
        ...

    def close(self) -> None:
        """Release what it works with. Idempotent."""
        ...
