"""The collectors that calls are handed: each has one of its own. What is emitted is checked at once
and kept until the step that its call ends in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiercel.spark_jobs.bolts.collecting import AsyncCollector, BasicCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.emitting.collectors import Recorder
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.errors import OutputLimitError, TupleError
from tiercel.spark_jobs.kinds.calls.call import Call, CallEmission


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
