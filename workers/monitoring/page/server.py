"""Serves the page and ``/metrics``, until a signal."""

from __future__ import annotations

import logging
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Response
from nicegui import __version__, core, ui
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiercel.workers.errors import UsageError
from tiercel.workers.lifecycle import on_signals
from tiercel.workers.monitoring.exposition import Scrape, TiercelCollector
from tiercel.workers.monitoring.page.limits import BoundedConfig, Lock, Rooms, limit_reports
from tiercel.workers.monitoring.page.sections import PageAddress
from tiercel.workers.monitoring.page.view import AllTopologies, Page
from tiercel.workers.monitoring.sampler import Sampler
from tiercel.workers.monitoring.watcher import Addresses, DeadLetterCache, Watcher

log = logging.getLogger(__name__)
SOCKETS = "/_nicegui_ws/"
PAGE = "/"
HEALTH = "/health"
# Paths that exist, or that NiceGUI itself answers with 404. For any other path NiceGUI would make a
# page, and keep it for a minute.
_PLACES = re.compile(
    rf"/|/metrics|/favicon\.ico"
    rf"|/_nicegui/{re.escape(__version__)}/((static|libraries|components|resources/[^/]+|esm/[^/]+)/.*|dynamic_resources/[^/]+)"
)
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NOTHING = "default-src 'none'; frame-ancestors 'none'"
# Vue compiles the templates of tables in the browser, which is eval; Quasar and ECharts set
# styles. Neither turns text into a script: each script in the page has the nonce of its answer, or
# is one of our files.
_PAGE = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_GRACE_S = 2
_RECONNECT_S = 60.0
# Messages that a page keeps for a browser that reconnects.
_KEPT_MESSAGES = 50
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NAME = r"\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?"
_HOST = re.compile(rf"({_NAME})(?::\d{{1,5}})?", re.IGNORECASE)
_ORIGIN = re.compile(rf"https?://(({_NAME})(?::\d{{1,5}})?)", re.IGNORECASE)


def serve(addresses: Addresses, lock: Lock, hosts: AllowedHosts, listener: socket.socket) -> None:
    """Serve under the names in ``hosts`` until SIGINT or SIGTERM; then close ``listener``."""
    sampler = Sampler(Watcher(addresses))
    config = BoundedConfig(
        # Answers are compressed last, because SafeHeaders reads pages.
        GZipMiddleware(SafeHeaders(Gate(_app(addresses, sampler, lock), hosts))),
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        # Otherwise a stranger on this machine could claim any address in the log.
        proxy_headers=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    # While it serves, uvicorn handles signals itself, and raises them again when it stops. This
    # handler is for a signal that arrives earlier.
    on_signals(lambda: setattr(server, "should_exit", True))
    sampler.start()
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("the page is at http://%s:%d/", shown, port, extra={"event": "monitor_ready"})
    try:
        server.run(sockets=[listener])
    finally:
        sampler.close()
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises UsageError if it is taken, or not an address of this machine."""
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


def _app(addresses: Addresses, sampler: Sampler, lock: Lock) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_figures(app, addresses, sampler)
    rooms, cache = Rooms(), DeadLetterCache(addresses.amqp_url or "")

    @ui.page("/", title="tiercel")
    def page(address: Annotated[PageAddress, Depends()]) -> Response | None:
        if not rooms.take(ui.context.client):
            return Response(
                "too many pages are open; close one", 503, {"Retry-After": "10"}, "text/plain"
            )
        if address.topology is None:
            AllTopologies(sampler)
        else:
            Page(sampler, addresses, cache, lock, address)
        return None

    # A browser that is cut off for longer reloads the page, and loses its selections.
    ui.run_with(
        app,
        dark=None,
        show_welcome_message=False,
        reconnect_timeout=_RECONNECT_S,
        message_history_length=_KEPT_MESSAGES,
        gzip_middleware_factory=None,
    )
    # Websockets only: another site's page may make the browser send plain requests.
    core.app.config.socket_io_js_transports = ["websocket"]
    limit_reports()
    return app


def _add_figures(app: FastAPI, addresses: Addresses, sampler: Sampler) -> None:
    """Add ``/metrics`` and ``/health``."""
    # A separate watcher, so that scrapes and pages do not wait for each other.
    scrape = Scrape(TiercelCollector(Watcher(addresses)))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await scrape.text(), media_type=CONTENT_TYPE_LATEST)

    # In the event loop, because all threads may be busy.
    @app.get("/health")
    async def health() -> Response:
        problem = sampler.unready()
        text, code = ("serving", 200) if problem is None else (f"not ready: {problem}", 503)
        return Response(text, code, media_type="text/plain")


class Gate:
    """Checks every request and websocket, on any address that the monitor listens on.

    ``/health`` is open to all, and reveals only whether the servers answer: health checks may name
    any host, or none.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and (
            not scope["path"].startswith(SOCKETS) or self._stranger(scope) is not None
        ):
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        path = scope["path"]
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("only GET", 405, {"Allow": "GET, HEAD"})
        if path == HEALTH:
            return None
        stranger = self._stranger(scope)
        if stranger is not None:
            return stranger
        if not _PLACES.fullmatch(path):
            return PlainTextResponse("there is nothing here", 404)
        # Another site's page must not show ours in a frame, nor request it as a picture a thousand
        # times.
        if path == PAGE and set(Headers(scope=scope).getlist("sec-fetch-dest")) - {"document"}:
            return PlainTextResponse("open this page by itself, not in a frame", 403)
        return None

    def _stranger(self, scope: Scope) -> PlainTextResponse | None:
        """Return the refusal of a request that names another host, or comes from another page."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        local = (scope.get("server") or ("",))[0]
        if len(hosts) != 1 or not self._hosts.admit(hosts[0], local):
            return PlainTextResponse(
                "the monitor refuses this name; allow it: tiercel monitor --allowed-host NAME", 400
            )
        if not all(
            self._hosts.admit_origin(origin, hosts[0]) for origin in headers.getlist("origin")
        ):
            return PlainTextResponse("this request came from another page", 403)
        return None


@dataclass(frozen=True, kw_only=True)
class AllowedHosts:
    """The host names that the page answers to: loopback, the operator's, and the address that a
    connection was made to.

    A stranger's web page can have its own name resolve to this machine (DNS rebinding), and read
    the monitor as if both were one site. The browser then sends the stranger's host, which is
    refused.
    """

    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str]) -> AllowedHosts:
        """Take names from the command line. Raises UsageError for a name that is not a host."""
        return cls(given=frozenset(_checked(name) for name in names))

    def admit(self, host: str, local_address: str) -> bool:
        """Return True if a request may name this ``Host`` on a connection to ``local_address``.

        The address itself is allowed: it needs no name service, so a stranger cannot claim it.
        """
        found = _HOST.fullmatch(host)
        return found is not None and _bare(found[1]) in LOOPBACK | self.given | {
            local_address.lower().removeprefix("::ffff:")
        }

    def admit_origin(self, origin: str, host: str) -> bool:
        """Return True if ``origin`` is our own page, and so may connect to ``host``.

        Behind a proxy that changes the host, our own page has one of the given names.
        """
        found = _ORIGIN.fullmatch(origin)
        if found is None:
            return False
        return found[1].lower() == host.lower() or _bare(found[2]) in self.given - LOOPBACK


def _checked(name: str) -> str:
    found = _HOST.fullmatch(name) or _HOST.fullmatch(f"[{name}]")
    if found is None or (found[0] != found[1]):
        raise UsageError(
            f"--allowed-host {name}: write a host name or address, without scheme and port"
        )
    return _bare(found[1])


def _bare(name: str) -> str:
    return name.strip("[]").lower()


class SafeHeaders:
    """Adds security headers to every answer, and the nonce to each script of the page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, _Answer(send).send if scope["type"] == "http" else send)


class _Answer:
    """One answer; a page is held back until it is complete, because its length changes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._page = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_ALWAYS)
            if headers.get("content-type", "").startswith("text/html"):
                self._start = message
                return
            headers["Content-Security-Policy"] = _NOTHING
        elif self._start is not None:
            self._page += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_page(self._start)
            return
        await self._send(message)

    async def _send_page(self, start: Message) -> None:
        nonce = secrets.token_urlsafe(16)
        # The content is JSON with every < escaped, so each tag is one of the page's own scripts.
        page = self._page.replace(b"<script", f'<script nonce="{nonce}"'.encode())
        headers = MutableHeaders(scope=start)
        headers["Content-Security-Policy"] = _PAGE.format(nonce=nonce)
        headers["Content-Length"] = str(len(page))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": page})
