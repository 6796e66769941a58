"""A receiver of OTLP over HTTP that records the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Arrived:
    """A span, and the service that sent it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    events: tuple[str, ...]
    attributes: dict[str, str]
    start_ns: int
    end_ns: int


class Receiver:
    """Holds the spans of one trace store."""

    def __init__(self) -> None:
        self.url = ""
        # If a span is sent twice, the last one counts, as in a store.
        self._spans: dict[str, Arrived] = {}

    @property
    def spans(self) -> list[Arrived]:
        return list(self._spans.values())

    def named(self, name: str) -> list[Arrived]:
        return [span for span in self.spans if span.name == name]

    def path_of(self, span: Arrived) -> list[str]:
        """Return the names from the first known span of the trace to this one."""
        parent = self._spans.get(span.parent_id)
        return [*(self.path_of(parent) if parent is not None else []), span.name]

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._spans[span.span_id.hex()] = Arrived(
                        service,
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        tuple(event.name for event in span.events),
                        _values(span.attributes),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )


def _values(attributes) -> dict[str, str]:
    return {
        each.key: str(getattr(each.value, each.value.WhichOneof("value"))) for each in attributes
    }


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive spans until the end of the block."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self.rfile.read(int(self.headers["Content-Length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
