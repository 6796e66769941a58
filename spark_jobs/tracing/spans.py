"""Spans and their contexts: how a context is read from headers, and written there.

All ids are random but those that a caller presets, see task.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from random import getrandbits, randbytes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tiercel.acker.inbox.contexts import CONTEXT_BYTES
from tiercel.queues.broker.frames import Headers
from tiercel.queues.message.writing import OutgoingMessage
from tiercel.spark_jobs.logs.formatters import printable, redact
from tiercel.spark_jobs.reasons import reason_of, user_traceback

if TYPE_CHECKING:  # an extra, and it takes 0.2 s to import
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span, SpanKind

log = logging.getLogger(__name__)

# Time for the spans that wait to be sent when the process ends.
_PARTING_S = 5.0
# A traceparent has 55 characters; later versions of W3C's may append some.
_LONGEST_PARENT = 200
_SAMPLED = 1
# Attributes of spans and of their events.
_REASON = "tiercel.reason"
SECONDS = "tiercel.seconds"
_ALL = 1 << 64
# Makes a tuple's message from its body.
Carrier = Callable[[Any, bytes], OutgoingMessage]


class SpanContext(NamedTuple):
    """The place of a span in its trace, as it travels."""

    trace_id: int
    span_id: int
    flags: int = _SAMPLED
    # W3C's tracestate: what other vendors added.
    state: str = ""

    def packed(self) -> bytes:
        """Return the bytes that travel behind a chunk.

        A state that a sampler made too long is left out: no bolt could read the chunk.
        """
        ids = self.trace_id.to_bytes(16) + self.span_id.to_bytes(8) + bytes([self.flags])
        whole = ids + self.state.encode()
        return whole if len(whole) <= CONTEXT_BYTES else ids

    @classmethod
    def of(cls, packed: bytes) -> SpanContext | None:
        """Read bytes that ``packed`` made; None for any others."""
        trace_id, span_id = int.from_bytes(packed[:16]), int.from_bytes(packed[16:24])
        if len(packed) < 25 or not trace_id or not span_id:
            return None
        return cls(trace_id, span_id, packed[24], packed[25:].decode("ascii", "replace"))

    @property
    def parent(self) -> str:
        """The value of the header ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


class _Ids:
    """``IdGenerator`` that gives the next span of this thread the ids that were preset."""

    def __init__(self) -> None:
        self._preset = threading.local()

    def preset(self, *, trace_id: int = 0, span_id: int = 0) -> None:
        """Set the ids of the next span that this thread starts; 0: random."""
        self._preset.trace_id, self._preset.span_id = trace_id, span_id

    def generate_span_id(self) -> int:
        """Implement ``IdGenerator``."""
        preset: int = getattr(self._preset, "span_id", 0)
        self._preset.span_id = 0
        return preset or getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        """Implement ``IdGenerator``."""
        preset: int = getattr(self._preset, "trace_id", 0)
        self._preset.trace_id = 0
        return preset or getrandbits(128) or 1

    def is_trace_id_random(self) -> bool:
        """Implement ``IdGenerator``."""
        return True


class Tracing:
    """The spans of this process. Thread-safe."""

    def __init__(
        self,
        provider: TracerProvider,
        parting_s: float = _PARTING_S,
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """Use the provider, and ids of our own.

        ``is_away`` returns True while a receiver is known to take no spans.
        """
        from opentelemetry import context, trace  # noqa: PLC0415 - an extra

        self._context = context
        self._api = trace
        self._ids = _Ids()
        self._provider = provider
        self._parting_s = parting_s
        self._is_away = is_away
        provider.id_generator = self._ids  # type: ignore[assignment]  # it has the methods
        self._tracer = provider.get_tracer("tiercel")
        # Emissions of one tuple have the same parent.
        self._around = lru_cache(maxsize=1_000)(self._made_around)
        self._sampler = provider.sampler
        self._bound = _bound_of(provider.sampler.get_description())

    def new_traces(self, count: int) -> dict[int, int]:
        """Decide which of this many new traces to record; return their ids, by number.

        The sampler decides again when the span starts, and agrees: its decision is a function of
        the id. Most are not recorded, and asking it takes twenty times as long.
        """
        if self._bound is None:
            return {number: getrandbits(128) or 1 for number in range(count)}
        if not self._bound:
            return {}
        # The bound itself may be 2**64, which is no uint64.
        lows = np.frombuffer(randbytes(8 * count), np.uint64)
        chosen = np.flatnonzero(lows <= np.uint64(self._bound - 1))
        return {int(number): getrandbits(64) << 64 | int(lows[number]) or 1 for number in chosen}

    def start(  # noqa: PLR0913 - as OpenTelemetry's own
        self,
        name: str,
        kind: str,
        parents: Sequence[SpanContext],
        attributes: Mapping[str, Any],
        *,
        span_id: int = 0,
        trace_id: int = 0,
        start_ns: int | None = None,
    ) -> Span:
        """Start a span: a child of the first of ``parents``, linked to the others."""
        around = self._around(parents[0]) if parents else self._context.Context()
        self._ids.preset(trace_id=trace_id, span_id=span_id)
        span = self._tracer.start_span(
            name,
            around,
            self._kind(kind),
            attributes,
            [self._link(each) for each in parents[1:]],
            start_ns,
        )
        self._ids.preset()  # a child takes its parent's trace, and leaves the preset one
        return span

    def _kind(self, name: str) -> SpanKind:
        return self._api.SpanKind[name]

    def _made_around(self, context: SpanContext) -> Context:
        return self._api.set_span_in_context(
            self._api.NonRecordingSpan(self._remote(context)), self._context.Context()
        )

    def _link(self, context: SpanContext) -> Link:
        return self._api.Link(self._remote(context))

    def _remote(self, context: SpanContext) -> Any:
        state = self._api.TraceState.from_header([context.state] if context.state else [])
        flags = self._api.TraceFlags(context.flags)
        return self._api.SpanContext(context.trace_id, context.span_id, True, flags, state)

    def context_of(self, span: Span) -> SpanContext:
        """Return the context of a span, for its children."""
        found = span.get_span_context()
        state = found.trace_state.to_header()
        return SpanContext(found.trace_id, found.span_id, int(found.trace_flags), state)

    @contextmanager
    def current(self, span: Span) -> Iterator[None]:
        """Make the span current in this thread or coroutine: spans of libraries are its children,
        and log records name it.
        """
        token = self._context.attach(self._api.set_span_in_context(span))
        try:
            yield
        finally:
            self._context.detach(token)

    def now(self) -> SpanContext | None:
        """Return the context of the current span if it is recorded."""
        span = self._api.get_current_span()
        return self.context_of(span) if span.is_recording() else None

    def carried(self, around: Carrier) -> Carrier:
        """Return ``around``, the maker of a tuple's message, so that the message carries on the
        context of the current span, in a span of its own.
        """

        def message_of(tup: Any, body: bytes) -> OutgoingMessage:
            message = around(tup, body)
            context = self.now()
            if context is not None:
                span = self.start(
                    f"create {message.exchange or message.routing_key}",
                    "PRODUCER",
                    [context],
                    _attributes_of(message),
                )
                span.end()
                made = self.context_of(span)
                headers = {"traceparent": made.parent}
                if made.state:
                    headers["tracestate"] = made.state
                properties = message.properties
                properties.headers = Headers.of(properties.headers).plus(headers)
            return message

        return message_of

    def raised(self, span: Span, error: BaseException) -> None:
        """Add the event of an exception, by OpenTelemetry's conventions.

        ``Span.record_exception`` raises if the error's ``__str__`` does.
        """
        kind = type(error)
        home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        span.add_event(
            "exception",
            {
                "exception.type": f"{home}{kind.__qualname__}",
                "exception.message": _shown(reason_of(error)),
                "exception.stacktrace": _shown(user_traceback(error)),
            },
        )

    def fail(self, span: Span, reason: str, event: str, **attributes: Any) -> None:
        """Mark the span as failed, with an event that says how."""
        reason = _shown(reason)
        span.add_event(event, {_REASON: reason, **attributes})
        span.set_status(self._api.StatusCode.ERROR, reason)

    def name_in_logs(self) -> None:
        """Give each log record inside a recorded span its ``trace_id`` and ``span_id``."""
        made = logging.getLogRecordFactory()
        current = self._api.get_current_span

        def factory(*arguments: Any, **named: Any) -> logging.LogRecord:
            record = made(*arguments, **named)
            span = current()
            if span.is_recording():
                context = span.get_span_context()
                record.trace_id = f"{context.trace_id:032x}"
                record.span_id = f"{context.span_id:016x}"
            return record

        logging.setLogRecordFactory(factory)

    def close(self) -> None:
        """Send the spans that wait, within a bound, and end."""
        self._bounded(self._provider.shutdown)

    def flush(self) -> None:
        """Send the spans that wait, within a bound."""
        self._bounded(self._provider.force_flush)

    def _bounded(self, send: Callable[[], object]) -> None:
        # The exporter's own timeout may be far longer, and the SDK does not pass a shorter one on.
        sending = threading.Thread(target=send, name="last spans", daemon=True)
        sending.start()
        # The next run, or the next worker of a spout, waits meanwhile.
        if not self._is_away():
            sending.join(self._parting_s)


def _shown(text: str) -> str:
    """Return the text without passwords, cut, and fit for UTF-8.

    An exporter drops all spans of a batch for the surrogate in one of them.
    """
    return printable(redact(text), kept="\n\t")


def _attributes_of(message: OutgoingMessage) -> dict[str, Any]:
    """Return the attributes of a message to be published, by OpenTelemetry's conventions."""
    attributes: dict[str, Any] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": message.exchange or message.routing_key,
        "messaging.rabbitmq.destination.routing_key": message.routing_key,
        "messaging.message.body.size": len(message.body),
    }
    if message.properties.message_id:
        attributes["messaging.message.id"] = message.properties.message_id
    return attributes


def parent_in(headers: Mapping[str, Any] | None) -> SpanContext | None:
    """Return the context in the headers of a message; None if there is no valid one.

    Of two headers of one name, the first counts, as for all headers.
    """
    # Searching the bytes is cheaper than reading the headers.
    if headers is None or b"traceparent" not in getattr(headers, "wire", b"traceparent"):
        return None
    given, state = headers.get("traceparent"), headers.get("tracestate")
    if not isinstance(given, str) or len(given) > _LONGEST_PARENT:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - an extra

    carrier = {"traceparent": given}
    if isinstance(state, str) and len(state) <= 512:
        carrier["tracestate"] = state
    found = tracecontext.TraceContextTextMapPropagator().extract(carrier)
    context = trace.get_current_span(found).get_span_context()
    if not context.is_valid:
        return None
    state = context.trace_state.to_header()
    return SpanContext(context.trace_id, context.span_id, int(context.trace_flags), state)


def _bound_of(description: str) -> int | None:
    """Return the bound below which a sampler records a new trace by the low half of its id; None if
    only the sampler knows.
    """
    if description.startswith("ParentBased{root:"):
        description = description.removeprefix("ParentBased{root:").partition(",")[0]
    if description == "AlwaysOffSampler":
        return 0
    if description.startswith("TraceIdRatioBased{"):
        rate = float(description.removeprefix("TraceIdRatioBased{").removesuffix("}"))
        return round(rate * _ALL)
    return None
