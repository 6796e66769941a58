"""The beginning and the end of the spans of a process, and its lines about the receiver."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from tiercel.spark_jobs.tracing.spans import Tracing

if TYPE_CHECKING:  # an extra, and it takes 0.2 s to import
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult


log = logging.getLogger(__name__)

# OpenTelemetry's loggers, whose lines about each failed batch become one line here.
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
)


# OpenTelemetry's logger about a setting of the batches that it cannot parse; it takes the default.
_SETTINGS_LOGGER = "opentelemetry.sdk.trace.export"

# OpenTelemetry reports a full queue once per twenty seconds at most. Until it is no longer full, a
# batch that a slow receiver took is not the end.
_FULL_S = 40.0

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
        provider, senders = _provider(settings, name)
        tracing = Tracing(provider, is_away=lambda: any(each.away for each in senders))
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


def _provider(settings: Mapping[str, str], name: str) -> tuple[TracerProvider, list[OneLine]]:
    """Return the provider of this process, with its exporters unless it is the user's own."""
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra

    known = trace.get_tracer_provider()
    if isinstance(known, TracerProvider):  # the user's own, as of opentelemetry-instrument
        return known, []
    own = "OTEL_SERVICE_NAME" in settings or "service.name=" in settings.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if own else {"service.name": name})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    wanted = settings.get("OTEL_TRACES_EXPORTER") or "otlp"
    senders = [OneLine(_exporter(each.strip(), settings)) for each in wanted.split(",")]
    for sender in senders:
        provider.add_span_processor(BatchSpanProcessor(sender))  # type: ignore[arg-type]
    trace.set_tracer_provider(provider)
    return provider, senders


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
        f"no exporter {name!r} is installed; 'otlp' and 'console' are, others are separate "
        "packages: OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_PROTOCOL"
    )


class OneLine:
    """``SpanExporter`` that logs one line when spans cannot be sent, and one when they can again.

    The lines of OpenTelemetry about each batch are left out.
    """

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        # True since the last spans could not be sent.
        self.away = False
        self._reason = ""
        # The time until which the queue counts as full, on the monotonic clock.
        self._full_until = 0.0
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._swallow)
        logging.getLogger(_SETTINGS_LOGGER).addFilter(_without_traceback)

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
        if sent and self.away and time.monotonic() > self._full_until:
            self.away = False
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
        if not self.away:
            self.away = True
            log.warning(
                "traces cannot be sent, and are dropped meanwhile; nothing else waits for them: %s",
                why.partition("\n")[0][:300],
                extra={"event": "traces_away"},
            )

    def _swallow(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message.startswith("Queue full"):
            self._full_until = time.monotonic() + _FULL_S
            # The batch that is being sent may have failed already, and be tried again.
            self._tell(self._reason or "the receiver is too slow for them, or does not answer")
        else:
            self._reason = self._reason or message
        return False


def _without_traceback(record: logging.LogRecord) -> bool:
    """Keep the line about a setting; the traceback below it says nothing more."""
    record.exc_info = None
    return True
