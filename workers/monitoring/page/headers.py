"""Headers of responses, which keep the page out of frames, and foreign scripts out of the page."""

from __future__ import annotations

import secrets

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NOTHING = "default-src 'none'; frame-ancestors 'none'"
# Vue compiles the templates of tables in the browser, which is eval; Quasar and ECharts set
# styles. Neither lets a text become a script: a script in the page has this answer's nonce, or
# is a file of ours.
_PAGE = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class SafeHeaders:
    """Adds the headers to every answer, and the nonce to each script of the page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, _Answer(send).send if scope["type"] == "http" else send)


class _Answer:
    """One answer on its way; a page is held until it is whole, for its length changes."""

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
        # All content comes as JSON in which every < is escaped: these are the page's own scripts.
        page = self._page.replace(b"<script", f'<script nonce="{nonce}"'.encode())
        headers = MutableHeaders(scope=start)
        headers["Content-Security-Policy"] = _PAGE.format(nonce=nonce)
        headers["Content-Length"] = str(len(page))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": page})
