"""Limits on what strangers can use up of the monitor: pages in memory, and lines in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from nicegui import Client, core

log = logging.getLogger(__name__)

# A page costs half a megabyte, from the request on and for a minute, whether a browser
# opens it or not.
MOST_PAGES = 100
_REPORT_CHARACTERS = 500
_REPORT_EVERY = timedelta(seconds=2)
# Their warnings and errors are about requests and packets that cannot be read.
_WRITTEN_BY_STRANGERS = (
    "uvicorn.error",
    "engineio.server",
    "socketio.server",
    "nicegui",
    "asyncio",
)


class Allowance:
    """A bucket of ``most``, of which one comes back per ``every``. For one thread."""

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
        """Seconds until there is one; 0 if there is."""
        self._fill()
        return max(0.0, (1 - self._left) * self._every_s)

    def take(self) -> bool:
        """Take one; False if there is none."""
        if self.wait_s > 0:
            return False
        self._left -= 1
        return True

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(float(self._most), self._left + (now - self._seen_at) / self._every_s)
        self._seen_at = now


class Rooms:
    """Keeps the number of pages bounded: those that no browser is connected to make room."""

    def __init__(self) -> None:
        self._opened: set[str] = set()

    def take(self, client: Client) -> bool:
        """Make room for a page that was just asked for.

        False if browsers are connected to all the others.
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
    # Of its socket, as long as there is one: that is what acts.
    scope = (client.environ or {}).get("asgi.scope", {})
    address = scope.get("client")
    return str(address[0]) if address else client.ip or "unknown"


class Seldom(logging.Filter):
    """Passes a few records at once, then one every two seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._allowance = Allowance(5, _REPORT_EVERY)

    def filter(self, _record: logging.LogRecord) -> bool:
        """Pass the record while there is an allowance."""
        return self._allowance.take()


def limit_reports() -> None:
    """Have pages log what went wrong in them as one bounded line, now and then.

    NiceGUI logs all of it, at once; the servers beneath it log each bad request and packet.
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
