"""One call of ``execute`` with its outcome and its collector, and the contract of its caller.

A collector checks each emission at once and keeps it until the step that plays the call back.
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
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.emitting.record import Recorder
from tiercel.spark_jobs.errors import OutputLimitError, TupleError


@dataclass(frozen=True, slots=True)
class CallEmission:
    """One emission, as the bolt made it."""

    values: tuple[Any, ...]
    stream: str
    # The receiving task, for direct streams.
    task: int | None = None


@dataclass(eq=False, kw_only=True, slots=True)
class Call:
    """One call of ``execute``. Only the caller's threads may touch its outcome until it ends."""

    tup: Tuple
    # Lineage of the tuple's chunk, in which the tuple is row ``tup.row``. None: the step has it.
    lineage: Lineage | None = None
    # Position of the chunk in the inbox. None: a tick of the task, or a call made within a step.
    position: str | None = None
    # Number in the order of arrival, from 1. The flight assigns it.
    number: int = 0
    # Its key, once the gate of a bolt with an order has computed it.
    key: bytes | None = None
    emissions: list[CallEmission] = field(default_factory=list)
    # Errors that the bolt reported; they have no effect on the tuple.
    reports: list[BaseException | str] = field(default_factory=list)
    # The error that the call raised.
    error: BaseException | None = None
    # Bytes emitted by the call.
    size: int = 0
    took_ns: int = 0
    ended: bool = False


def calls_of(chunk: Chunk, rows: Sequence[int], position: str) -> list[Call]:
    """Return one call for each of the given rows of a chunk."""
    lineage = chunk.lineage
    tuples = tuples_of(chunk, 0, lineage.seeds)
    return [Call(tup=tuples[row], lineage=lineage, position=position) for row in rows]


def rows_of(calls: Sequence[Call]) -> dict[str, list[int]]:
    """Return the rows of the calls by position, in the order of the calls."""
    rows: dict[str, list[int]] = {}
    for call in calls:
        rows.setdefault(call.position or "", []).append(call.tup.row)
    return rows


class CallRecorder(Recorder):
    """Base of the collectors of calls. Used by one thread at a time."""

    def __init__(self, component: str, outputs: Outputs, call: Call | None) -> None:
        """``call`` is None in ``flush``."""
        self._component = component
        self._outputs = outputs
        self._call = call
        # Errors reported by the call, or in ``flush``.
        self.reports: list[BaseException | str] = [] if call is None else call.reports

    def report_error(self, error: BaseException | str) -> None:
        self.reports.append(error)

    def _keep(self, values: Sequence[Any], stream: str) -> None:
        call = self._under_way()
        output_stream = self._outputs.for_emit(stream, values)
        kept = output_stream.keep(values)
        if output_stream.subscribers:
            self._add(call, output_stream.size(kept))
        call.emissions.append(CallEmission(kept, stream))

    def _keep_direct(self, task: int, values: Sequence[Any], stream: str) -> None:
        call = self._under_way()
        self._outputs.direct(task, stream, values)
        output_stream = self._outputs.streams[stream]
        kept = output_stream.keep(values)
        self._add(call, output_stream.size(kept))
        call.emissions.append(CallEmission(kept, stream, task))

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
    """The ``BasicCollector`` of one call in a thread; ``emit`` cannot return the tasks yet."""

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        self._keep(values, stream)
        return []

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._keep_direct(task, values, stream)


# The ``execute`` method of a bolt.
Execute = Callable[[Any, Any], Awaitable[object] | None]
# Called with each call that has ended, from any thread.
Ended = Callable[[Call], None]


class UnderWay(Protocol):
    """The calls of one flight, as a waiting caller sees them."""

    @property
    def changed(self) -> threading.Event:
        """Event that is set when a call ends and when the task is woken."""

    @property
    def under_way(self) -> int:
        """Number of calls that have begun and not ended."""


class Caller(Protocol):
    """Runs the calls of one bolt task. Other threads may call ``hanging`` and ``oldest``."""

    def time(self) -> float:
        """Return the time on the caller's clock, in seconds."""

    def recorder(self, call: Call | None) -> CallRecorder:
        """Return the collector of a call, or of ``flush`` if ``call`` is None."""

    def start(self, execute: Execute, calls: Sequence[Call], ended: Ended) -> None:
        """Begin the calls.

        Each call ends by itself or is cancelled when it takes too long, and is then passed to
        ``ended`` once.
        """

    def pause(self, calls: UnderWay, seconds: float) -> None:
        """Wait until a call ends or the task is woken, for at most ``seconds``.

        May return early.
        """

    def do(self, method: Callable[..., Awaitable[None] | None], *arguments: object) -> None:
        """Run another method of the bolt to its end, and propagate its errors."""

    def hanging(self) -> Call | None:
        """Return the call that may be hanging; the watchdog ends the process after its limit.

        Thread-safe.
        """

    def oldest(self) -> Call | None:
        """Return the running call that began first. Thread-safe."""

    def cancel(self) -> bool:
        """Cancel the running calls, wait for them briefly, and start no further call.

        Returns False if a call is still running. Idempotent.
        """

    def close(self) -> None:
        """Release the caller's resources. Idempotent."""
