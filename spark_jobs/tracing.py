"""OpenTelemetry: the spans of this process, and how the context of a trace travels.

Nothing here is called, and OpenTelemetry is not imported, unless ``OTEL_*`` settings ask for
traces: ``start`` returns None, and every caller keeps the function that it has without traces. The
settings are OpenTelemetry's own, read by its SDK.

A trace's context goes from a span to the next in the headers of a message (``traceparent``), and
from task to task as bytes behind a chunk (``acker.inbox.contexts``), only for tuples whose trace is
recorded. Spans wait in memory for a thread that sends them; when it cannot, they are dropped.

The id of a bolt's span is derived from its tuple and its step, because a repeated step must emit
the same bytes: the contexts of its emissions name that span. All other ids are random.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import entry_points
from itertools import islice
from random import getrandbits, randbytes
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from tiercel.acker.ids import mix
from tiercel.acker.inbox.chunk import Lineage
from tiercel.acker.inbox.contexts import Contexts, rows_with
from tiercel.acker.ledger import Failure, Ids
from tiercel.queues.broker.frames import Headers
from tiercel.queues.message.writing import OutgoingMessage

if TYPE_CHECKING:  # an extra, and it takes 0.2 s to import
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.trace import Link, Span, SpanKind

log = logging.getLogger(__name__)

# Time for the spans that wait to be sent when the process ends.
_PARTING_S = 5.0
# A traceparent has 55 characters; later versions of W3C's may append some.
_LONGEST_PARENT = 200
_SAMPLED = 1
# Attributes of spans and of their events.
_REASON = "tiercel.reason"
_SECONDS = "tiercel.seconds"
_ALL = 1 << 64
# OpenTelemetry's loggers, whose lines about each failed batch become one line here.
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
)


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
        """Return the bytes that travel behind a chunk."""
        return b"".join(
            (
                self.trace_id.to_bytes(16),
                self.span_id.to_bytes(8),
                bytes([self.flags]),
                self.state.encode(),
            )
        )

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

    def __init__(self, provider: TracerProvider, parting_s: float = _PARTING_S) -> None:
        """Make the provider that of the process, so that instrumentation of libraries uses it."""
        from opentelemetry import context, trace  # noqa: PLC0415 - an extra

        self._context = context
        self._api = trace
        self._ids = _Ids()
        self._provider = provider
        self._parting_s = parting_s
        provider.id_generator = self._ids  # type: ignore[assignment]  # it has the methods
        self._tracer = provider.get_tracer("tiercel")
        self._sampler = provider.sampler
        self._bound = _bound_of(provider.sampler.get_description())

    def new_traces(self, count: int) -> dict[int, int]:
        """Decide which of this many new traces to record; return their ids, by number.

        The sampler decides again when the span starts, and agrees: its decision is a function of
        the id. Most are not recorded, and asking it takes a hundred times as long.
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

    def _around(self, context: SpanContext) -> Context:
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

    def fail(self, span: Span, reason: str, event: str, **attributes: Any) -> None:
        """Mark the span as failed, with an event that says how."""
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
        sending.join(self._parting_s)


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


# A bolt's ``Execution`` (running.step), of which only two functions are replaced.
E = TypeVar("E")
# The event for each exception that is a verdict and no error.
Verdicts = Mapping[type[BaseException], str]
# Most contexts of tuples to be called, above the number of tuples that wait.
_MOST_FED = 20_000
# Tells the ids of spans apart from other numbers that are derived from a seed.
_SPANS = 0x7370616E


def span_id_of(seed: int, salt: int) -> int:
    """Return the id of the span that executes a tuple, the same in a repeated step."""
    return mix(seed ^ salt ^ _SPANS) or 1


class TaskTracing:
    """The spans of one bolt task. Only ``around_call`` has functions for other threads."""

    def __init__(self, tracing: Tracing, component: str, task: int) -> None:
        self.tracing = tracing
        self._component = component
        self._attributes = {"tiercel.component": component, "tiercel.task": task}
        # The spans of the step that is being executed.
        self._spans: StepSpans | None = None
        # Contexts of the latest tuples to be called, and of the tuples of the current step.
        self._fed: dict[int, tuple[bytes, ...]] = {}
        self._of_step: Contexts = {}
        self._verdicts: Verdicts = {}

    def traced(self, execution: E, *, calls: bool = False) -> E:
        """Return an ``Execution`` that records spans for tuples with a context.

        ``calls``: the calls have spans of their own (``around_call``) and begin before the step.
        """
        given: Any = execution

        def execute(bolt: Any, step: Any) -> bool:
            if step.lineage.contexts is None:
                done: bool = given.execute(bolt, step)
                return done
            return self._executed(given, bolt, step, calls=calls)

        def departures(record: Any, lineage: Lineage, seeds: Ids) -> Any:
            leaving = given.departures(record, lineage, seeds)
            if self._spans is not None:
                # Only now is each failure known: a value of a wrong type is found as it leaves.
                spans, self._spans = self._spans, None
                spans.finish(record)
            return leaving

        return cast("E", replace(given, execute=execute, departures=departures))

    def _executed(self, execution: Any, bolt: Any, step: Any, *, calls: bool) -> bool:
        lineage = step.lineage
        if calls:
            self._of_step = lineage.contexts
        salt = 0 if calls else step.record.salt
        spans = StepSpans(self, lineage, step.record.held, salt, at_once=execution.at_once)
        step.lineage = replace(lineage, contexts=spans.contexts)
        if not calls:
            self._spans = step.spans = spans
        with spans.together() if execution.at_once else nullcontext():
            done: bool = execution.execute(bolt, step)
        return done

    def feed(self, contexts: Contexts | None) -> None:
        """Keep the contexts of tuples that are to be called."""
        if contexts is not None:
            self._fed.update(contexts)
            # A tuple may be called again, so the oldest are dropped instead of those called.
            for seed in list(islice(self._fed, max(0, len(self._fed) - _MOST_FED))):
                del self._fed[seed]

    def around_call(
        self, execute: Callable[..., Any], *, awaits: bool, verdicts: Verdicts
    ) -> Callable[[Any, Any], Awaitable[None] | None]:
        """Return ``execute`` of a bolt with concurrent calls, with a span for each traced tuple."""
        self._verdicts = verdicts

        def call(tup: Any, collector: Any) -> Awaitable[None] | None:
            parents = self._fed.get(tup.seed) or self._of_step.get(tup.seed)
            if parents is None:
                made: Awaitable[None] | None = execute(tup, collector)
                return made
            if awaits:
                return self._awaited(execute, tup, collector, parents)
            with self._called(tup.seed, parents):
                execute(tup, collector)
            return None

        return call

    async def _awaited(
        self, execute: Callable[..., Any], tup: Any, collector: Any, parents: tuple[bytes, ...]
    ) -> None:
        with self._called(tup.seed, parents):
            made = execute(tup, collector)
            if made is not None:
                await made

    @contextmanager
    def _called(self, seed: int, parents: tuple[bytes, ...]) -> Iterator[None]:
        span = self.start(parents, span_id_of(seed, 0))
        try:
            with self.tracing.current(span):
                yield
        except BaseException as error:
            event = self._verdicts.get(type(error))
            seconds = getattr(error, "seconds", None)
            if event is None:
                span.record_exception(error)
                self.tracing.fail(span, f"{type(error).__name__}: {error}", "failed")
            else:
                more = {} if seconds is None else {_SECONDS: seconds}
                self.tracing.fail(span, str(error), event, **more)
            raise
        finally:
            span.end()

    def start(
        self, parents: Sequence[bytes], span_id: int, *, verb: str = "execute", tuples: int = 0
    ) -> Span:
        """Start the span of a call."""
        known = [each for each in map(SpanContext.of, parents) if each is not None]
        attributes = self._attributes
        if tuples:
            attributes = {**attributes, "messaging.batch.message_count": tuples}
        name = f"{verb} {self._component}"
        return self.tracing.start(name, "INTERNAL", known, attributes, span_id=span_id)


class StepSpans:
    """The spans of one step: one per traced tuple, or one for all if the bolt gets them at once."""

    def __init__(
        self, task: TaskTracing, lineage: Lineage, held: int, salt: int, *, at_once: bool
    ) -> None:
        """``held`` is the number of tuples of earlier steps, which come first."""
        self._task = task
        self._salt = salt
        self._at_once = at_once
        self._tuples = len(lineage.counts) - held
        parents = lineage.contexts or {}
        rows = rows_with(parents, lineage.seeds)
        # Of each traced tuple of the input, by row.
        self._seeds = {row: int(lineage.seeds[row]) for row in rows.tolist() if row >= held}
        self._parents = {row: parents[seed] for row, seed in self._seeds.items()}
        # By row: the span, and its end.
        self._ended: dict[int, tuple[Span, int]] = {}
        self.contexts: Contexts = {**parents, **self._own()}

    def _own(self) -> dict[int, tuple[bytes, ...]]:
        """Return the contexts of the spans of this step: those of the emissions to come.

        The span of a batch is in one trace. Emissions of tuples of other traces keep the context
        that their tuple came with: a span's parent is of the same trace.
        """
        own: dict[int, tuple[bytes, ...]] = {}
        batch: SpanContext | None = None
        for row, seed in self._seeds.items():
            parent = SpanContext.of(self._parents[row][0])
            if parent is None:
                continue
            span = parent._replace(span_id=span_id_of(seed, self._salt))
            if self._at_once:
                batch = batch or span
                if batch.trace_id != parent.trace_id:
                    continue
                span = batch
            own[seed] = (span.packed(),)
        return own

    def around(self, execute: Callable[..., None]) -> Callable[..., None]:
        """Return ``execute`` with a span for each traced tuple."""

        def traced(tup: Any, collector: Any) -> None:
            parents = self._parents.get(tup.row)
            if parents is None:
                execute(tup, collector)
                return
            span = self._task.start(parents, span_id_of(self._seeds[tup.row], self._salt))
            try:
                with self._task.tracing.current(span):
                    execute(tup, collector)
            except BaseException as error:
                span.record_exception(error)
                raise
            finally:
                self._ended[tup.row] = (span, time.time_ns())

        return traced

    @contextmanager
    def together(self) -> Iterator[None]:
        """Execute the step in one span, which has links to all other contexts of its tuples."""
        if not self._parents:
            yield
            return
        row = next(iter(self._parents))
        parents = [context for contexts in self._parents.values() for context in contexts]
        span_id = span_id_of(self._seeds[row], self._salt)
        span = self._task.start(parents, span_id, verb="execute_batch", tuples=self._tuples)
        with self._task.tracing.current(span):
            yield
        self._ended[row] = (span, time.time_ns())

    def finish(self, record: Any) -> None:
        """End the spans, those of failed tuples with the reason."""
        reasons: Mapping[int, str] = record.reasons
        for row, (span, ended_ns) in self._ended.items():
            for failed in self._parents if self._at_once else (row,):
                if failed in reasons:
                    self._fail(span, record.failure(failed, 0, 0))
            span.end(ended_ns)
        self._ended.clear()

    def _fail(self, span: Span, failure: Failure) -> None:
        fail = self._task.tracing.fail
        seconds = failure.retry_after_s
        if seconds is not None:
            fail(span, failure.reason, "retry_later", **{_SECONDS: seconds})
        else:
            fail(span, failure.reason, "rejected" if failure.reject else "failed")


# -- the beginning and the end ---------------------------------------------------------------------

_started: list[Tracing] = []


def of_this_process() -> Tracing | None:
    """Return the spans of this process; None without traces."""
    return _started[-1] if _started else None


def start(settings: Mapping[str, str], name: str) -> Tracing | None:
    """Begin to record and send spans, if ``settings`` (the variables ``OTEL_*``) ask for them.

    ``name`` is the service's name unless the settings have one. Idempotent. Never raises: traces
    must not keep a topology from running.
    """
    if not settings or _started:
        return of_this_process()
    os.environ.update({key: value for key, value in settings.items() if key not in os.environ})
    try:
        tracing = Tracing(_provider(settings, name))
    except ImportError:
        log.warning(
            "OTEL_* settings ask for traces, and OpenTelemetry is not installed here; none are "
            "sent: pip install 'tiercel[otel]', or unset them",
            extra={"event": "traces_not_installed"},
        )
        return None
    except Exception as error:  # noqa: BLE001 - an exporter may raise anything for a setting
        log.warning("no traces are sent: %s", error, extra={"event": "traces_misconfigured"})
        return None
    tracing.name_in_logs()
    _started.append(tracing)
    return tracing


def stop() -> None:
    """Send the spans that wait, within a bound; the process ends."""
    while _started:
        _started.pop().close()


def flush() -> None:
    """Send the spans that wait, within a bound: the process may end, or begin another run."""
    for tracing in _started:
        tracing.flush()


def _provider(settings: Mapping[str, str], name: str) -> TracerProvider:
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra

    known = trace.get_tracer_provider()
    if isinstance(known, TracerProvider):  # the user's own, as of opentelemetry-instrument
        return known
    own = "OTEL_SERVICE_NAME" in settings or "service.name=" in settings.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if own else {"service.name": name})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    wanted = settings.get("OTEL_TRACES_EXPORTER") or "otlp"
    for exporter in wanted.split(","):
        sender = _exporter(exporter.strip(), settings)
        provider.add_span_processor(BatchSpanProcessor(OneLine(sender)))  # type: ignore[arg-type]
    trace.set_tracer_provider(provider)
    return provider


def _exporter(name: str, settings: Mapping[str, str]) -> Any:
    """Return a new exporter; raises ValueError if none has this name."""
    if name == "otlp":
        protocol = settings.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or settings.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
        )
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for entry in entry_points(group="opentelemetry_traces_exporter", name=name):
        return entry.load()()
    raise ValueError(
        f"no exporter {name!r} is installed; 'otlp' and 'console' are, others are packages of "
        "their own: OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_PROTOCOL"
    )


class OneLine:
    """``SpanExporter`` that logs one line when spans cannot be sent, and one when they can again.

    The lines of OpenTelemetry about each batch are left out.
    """

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self._away = False
        self._reason = ""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._swallow)

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Implement ``SpanExporter``."""
        self._reason = ""
        try:
            result: SpanExportResult = self._exporter.export(spans)
            sent = result.value == 0
        except Exception as error:  # noqa: BLE001 - of any exporter
            from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

            self._reason = str(error)
            result, sent = SpanExportResult.FAILURE, False
        if sent and self._away:
            self._away = False
            log.info("traces are sent again", extra={"event": "traces_back"})
        elif not sent:
            self._tell(self._reason or "its receiver refused them")
        return result

    def shutdown(self) -> None:
        """Implement ``SpanExporter``."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Implement ``SpanExporter``."""
        done: bool = self._exporter.force_flush(timeout_millis)
        return done

    def _tell(self, why: str) -> None:
        if not self._away:
            self._away = True
            log.warning(
                "traces cannot be sent, and are dropped meanwhile; nothing else waits for them: %s",
                why.partition("\n")[0][:300],
                extra={"event": "traces_away"},
            )

    def _swallow(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message.startswith("Queue full"):
            self._tell("they come faster than the receiver takes them")
        else:
            self._reason = self._reason or message
        return False


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
