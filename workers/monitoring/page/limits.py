"""Limits on the resources that strangers can use up: pages in memory, lines in the log, and guesses
at the token.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from nicegui import Client, core

log = logging.getLogger(__name__)

# A page takes half a megabyte from its request on, for at least a minute, even if no browser opens
# it.
MOST_PAGES = 100
_REPORT_CHARACTERS = 500
_REPORT_EVERY = timedelta(seconds=2)
# Loggers whose warnings and errors are about unreadable requests and packets.
_WRITTEN_BY_STRANGERS = (
    "uvicorn.error",
    "engineio.server",
    "socketio.server",
    "nicegui",
    "asyncio",
)


class Allowance:
    """A token bucket: holds ``most``, and refills by one per ``every``. For one thread."""

    def __init__(
        self, most: int, every: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._every_s = every.total_seconds()
        self._clock = clock
        self._left = float(most)
        self._seen_at = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until ``take`` succeeds; 0 if it would now."""
        self._fill()
        return max(0.0, (1 - self._left) * self._every_s)

    def take(self) -> bool:
        """Take one; False if the bucket is empty."""
        if self.wait_s > 0:
            return False
        self._left -= 1
        return True

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(float(self._most), self._left + (now - self._seen_at) / self._every_s)
        self._seen_at = now


class Lock:
    """Checks tokens, and limits wrong ones over all pages and peers together."""

    def __init__(self, token: str, *, hint: str, allowance: Allowance | None = None) -> None:
        """``hint`` says where the operator finds the token."""
        self._token = token.encode()
        self.hint = hint
        self._allowance = allowance or Allowance(5, timedelta(seconds=10))
        self._closed = False

    def refusal(self, given: str, peer: str) -> str | None:
        """Return None for the right token, else a message for the page; log wrong tokens.

        After too many wrong ones the right one is refused too, or guessing could go on.
        """
        wait_s = self._allowance.wait_s
        if wait_s > 0:
            # Logged once per closing, or guesses would flood the log instead.
            if not self._closed:
                log.warning(
                    "too many wrong tokens, refusing all for now; the last from %s",
                    peer,
                    extra={"event": "token_closed"},
                )
            self._closed = True
            return f"too many wrong tokens were given; try again in {wait_s:.0f} s"
        self._closed = False
        if hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token):
            return None
        self._allowance.take()
        log.warning(
            "a wrong token was given from %s",
            peer,
            extra={"event": "token_refused", "origin": peer},
        )
        return "wrong token"


class Rooms:
    """Bounds the number of pages: pages without a connected browser make room for new ones."""

    def __init__(self) -> None:
        self._opened: set[str] = set()

    def take(self, client: Client) -> bool:
        """Make room for a page that was just requested.

        False if browsers are connected to all other pages.
        """
        while len(Client.instances) > MOST_PAGES:
            idle = [
                each
                for each in Client.instances.values()
                if each is not client and not each.has_socket_connection
            ]
            if not idle:
                client.delete()
                return False
            # A browser that was cut off may come back to its page.
            min(idle, key=lambda each: (each.id in self._opened, each.created)).delete()
        client.on_connect(lambda: self._opened.add(client.id))
        client.on_delete(lambda: self._opened.discard(client.id))
        return True


def peer_of(client: Client) -> str:
    """Return the address that a page's browser, or its proxy, is connected from."""
    # The address of its socket, while it has one, because the socket sends the actions.
    scope = (client.environ or {}).get("asgi.scope", {})
    address = scope.get("client")
    return str(address[0]) if address else client.ip or "unknown"


class Seldom(logging.Filter):
    """Passes a burst of five records, then one every two seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._allowance = Allowance(5, _REPORT_EVERY)

    def filter(self, _record: logging.LogRecord) -> bool:
        """Return True while the allowance lasts."""
        return self._allowance.take()


def limit_reports() -> None:
    """Log the errors that pages report as single bounded lines, at a limited rate.

    NiceGUI would log every report in full; its servers log each bad request and packet.
    """
    for logger in _WRITTEN_BY_STRANGERS:
        logging.getLogger(logger).addFilter(Seldom())
    allowance = Allowance(5, _REPORT_EVERY)

    def report(_socket: str, said: Any) -> None:
        client = (
            Client.instances.get(str(said.get("client_id"))) if isinstance(said, dict) else None
        )
        if client is not None and allowance.take():
            text = str(said.get("message"))[:_REPORT_CHARACTERS]
            log.warning(
                "a page at %s reports %r", peer_of(client), text, extra={"event": "page_reported"}
            )

    core.sio.on("log", report)
