"""Serves the page and ``/metrics``, until a signal."""

from __future__ import annotations

import logging
import socket

import uvicorn
from fastapi import FastAPI, Response
from nicegui import core, ui
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.exposition import Scrape, registry_of
from tiercel.workers.monitoring.page.connections import BoundedConfig
from tiercel.workers.monitoring.page.gate import Gate
from tiercel.workers.monitoring.page.headers import SafeHeaders
from tiercel.workers.monitoring.page.hosts import AllowedHosts
from tiercel.workers.monitoring.page.limits import Rooms, limit_reports
from tiercel.workers.monitoring.page.token import Lock
from tiercel.workers.monitoring.page.view import Page
from tiercel.workers.monitoring.shelf import Shelf
from tiercel.workers.monitoring.station import Station
from tiercel.workers.monitoring.watcher import Addresses, Watcher
from tiercel.workers.signals import on_signals

log = logging.getLogger(__name__)

_GRACE_S = 2
_RECONNECT_S = 60.0
# Messages that a page keeps for a browser that connects again.
_KEPT_MESSAGES = 50


def serve(addresses: Addresses, lock: Lock, hosts: AllowedHosts, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, under these names; ``listener`` is closed afterwards."""
    station = Station(Watcher(addresses))
    config = BoundedConfig(
        _guarded(_app(addresses, station, lock), hosts),
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        # Else a local stranger could say to be anywhere else, in the log.
        proxy_headers=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    # While it serves it handles signals itself, and raises them again at its end; this is for one
    # that comes earlier.
    on_signals(lambda: setattr(server, "should_exit", True))
    station.start()
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("the page is at http://%s:%d/", shown, port, extra={"event": "monitor_ready"})
    try:
        server.run(sockets=[listener])
    finally:
        station.close()
        listener.close()


def _guarded(app: ASGIApp, hosts: AllowedHosts) -> ASGIApp:
    """Put the gate in front. Answers are compressed last: SafeHeaders looks into pages."""
    return GZipMiddleware(SafeHeaders(Gate(app, hosts)))


def _app(addresses: Addresses, station: Station, lock: Lock) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # A watcher of its own: a scrape must not wait for the page's look, nor the page for a scrape.
    scrape = Scrape(registry_of(Watcher(addresses)))
    rooms = Rooms()
    shelf = Shelf(addresses.amqp_url or "")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await scrape.text(), media_type=CONTENT_TYPE_LATEST)

    # In the event loop: threads may all be busy.
    @app.get("/health")
    async def health() -> Response:
        return Response("serving", media_type="text/plain")

    @ui.page("/", title="tiercel")
    def page(topology: str | None = None) -> Response | None:
        if not rooms.take(ui.context.client):
            return Response(
                "too many pages are open; close one", 503, {"Retry-After": "10"}, "text/plain"
            )
        Page(station, addresses, shelf, lock, topology)
        return None

    # A browser that was cut off for longer loads the page anew, and what was chosen in it is gone.
    ui.run_with(
        app,
        dark=None,
        show_welcome_message=False,
        reconnect_timeout=_RECONNECT_S,
        message_history_length=_KEPT_MESSAGES,
        gzip_middleware_factory=None,
    )
    # Only over a websocket: what a browser asks for with plain requests need not
    # come from our page.
    core.app.config.socket_io_js_transports = ["websocket"]
    limit_reports()
    return app


def listen(host: str, port: int) -> socket.socket:
    """Take the address. Raises UsageError if it is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --host and "
            "--port"
        ) from error
    return listener
