"""Serves the page and ``/metrics``, until a signal."""

from __future__ import annotations

import logging
import socket

import uvicorn
from fastapi import FastAPI, Response
from nicegui import ui
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.trustedhost import TrustedHostMiddleware

from workers.errors import UsageError
from workers.monitoring.exposition import registry_of
from workers.monitoring.page import Page
from workers.monitoring.station import Station
from workers.monitoring.watcher import Servers, Watcher
from workers.options import on_signals

log = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_GRACE_S = 2
_RECONNECT_S = 60.0


def serve(servers: Servers, token: str, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM. Raises UsageError if the address is taken or not ours."""
    listener = _listen(host, port)
    station = Station(Watcher(servers))
    app = _app(servers, station, token)
    if host in _LOOPBACK:
        # Else a foreign page could name itself as this host in the DNS, and read what is shown here.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])
    config = uvicorn.Config(app, log_config=None, log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE_S)
    server = uvicorn.Server(config)
    # While it serves it handles signals itself, and raises them again at its end; this is for one that comes earlier.
    on_signals(lambda: setattr(server, "should_exit", True))
    station.start()
    shown = f"[{host}]" if ":" in host else host
    log.info("the page is at http://%s:%d/", shown, listener.getsockname()[1], extra={"event": "monitor_ready"})
    try:
        server.run(sockets=[listener])
    finally:
        station.close()
        listener.close()


def _app(servers: Servers, station: Station, token: str) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # A watcher of its own: a scrape must not wait for the page's look, nor the page for a scrape.
    registry = registry_of(Watcher(servers))

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    def health() -> Response:
        return Response("serving", media_type="text/plain")

    @ui.page("/", title="tiercel")
    def page(topology: str | None = None) -> None:
        Page(station, servers, token, topology)

    # A browser that was cut off for longer loads the page anew, and what was chosen in it is gone.
    ui.run_with(app, dark=None, show_welcome_message=False, reconnect_timeout=_RECONNECT_S)
    return app


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --host and --port") from error
    return listener
