"""Gate for requests: only for us, only from our own page, only for pages that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nicegui import __version__
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tiercel.workers.monitoring.page.hosts import AllowedHosts

SOCKETS = "/_nicegui_ws/"
PAGE = "/"
HEALTH = "/health"
# Paths that exist, or of which NiceGUI itself says that they do not: for all others it makes a page
# of its own, and keeps that for a minute.
_PLACES = re.compile(
    rf"/|/metrics|/favicon\.ico"
    rf"|/_nicegui/{re.escape(__version__)}/((static|libraries|components|resources/[^/]+|esm/[^/]+)/.*|dynamic_resources/[^/]+)"
)


class Gate:
    """Stands before everything that the monitor serves, on whatever address it listens.

    ``/health`` is open to all, for it tells nothing: health checks come without a host or with any.
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
        # A foreign page may not show ours in a frame, nor ask for it as a picture, a thousand
        # times.
        if path == PAGE and any(said != "document" for said in _headers(scope, b"sec-fetch-dest")):
            return PlainTextResponse("this is a page to be opened by itself", 403)
        return None

    def _stranger(self, scope: Scope) -> PlainTextResponse | None:
        """Return the answer to a request that names another host, or comes from another page."""
        hosts = list(_headers(scope, b"host"))
        local = (scope.get("server") or ("",))[0]
        if len(hosts) != 1 or not self._hosts.admit(hosts[0], local):
            return PlainTextResponse(
                "the monitor is not known by this name; tiercel monitor --allowed-host NAME", 400
            )
        if not all(
            self._hosts.admit_origin(origin, hosts[0]) for origin in _headers(scope, b"origin")
        ):
            return PlainTextResponse("this came from another page", 403)
        return None


def _headers(scope: Scope, name: bytes) -> Iterator[str]:
    for key, value in scope["headers"]:
        if key == name:
            yield value.decode("latin-1")
