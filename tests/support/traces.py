"""Recorded spans, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

from tiercel.spark_jobs.tracing import process
from tiercel.spark_jobs.tracing.spans import Tracing


@dataclass
class Recorded:
    """Spans that ended in this process."""

    provider: TracerProvider
    exporter: InMemorySpanExporter

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def parent_of(self, span: ReadableSpan) -> ReadableSpan | None:
        """Return the parent, which must be recorded too; None for the root of a trace."""
        if span.parent is None:
            return None
        [parent] = [one for one in self.spans if one.context.span_id == span.parent.span_id]
        assert parent.context.trace_id == span.context.trace_id
        return parent

    def path_of(self, span: ReadableSpan) -> list[str]:
        """Return the names from the root of the trace to the span."""
        parent = self.parent_of(span)
        return [*(self.path_of(parent) if parent is not None else []), span.name]


@contextmanager
def recorded(sampler: Sampler | None = None) -> Iterator[Recorded]:
    """Record the spans of this process until the end of the block."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler or ParentBased(ALWAYS_ON), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    process._started.append(Tracing(provider))
    try:
        yield Recorded(provider, exporter)
    finally:
        process.stop()
