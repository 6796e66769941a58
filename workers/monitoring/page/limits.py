"""Limits on what strangers can use up of the monitor: pages in memory, and lines in the log."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from nicegui import Client, core

from tiercel.workers.monitoring.page.allowance import Allowance

log = logging.getLogger(__name__)

# A page costs half a megabyte, from the request on and for a minute, whether a browser
# opens it or not.
MOST_PAGES = 100
_REPORT_CHARACTERS = 500


class Rooms:
    """Keeps the number of pages bounded: those that no browser has opened yet make room."""

    def __init__(self) -> None:
        self._opened: set[str] = set()

    def take(self, client: Client) -> bool:
        """Make room for a page that was just asked for.

        False if browsers have opened all the others.
        """
        while len(Client.instances) > MOST_PAGES:
            waiting = [
                each
                for each in Client.instances.values()
                if each is not client and each.id not in self._opened
            ]
            if not waiting:
                client.delete()
                return False
            min(waiting, key=lambda each: each.created).delete()
        client.on_connect(lambda: self._opened.add(client.id))
        client.on_delete(lambda: self._opened.discard(client.id))
        return True


def peer_of(client: Client) -> str:
    """Return the address that a page's browser, or its proxy, is connected from."""
    # Of its socket, as long as there is one: that is what acts.
    scope = (client.environ or {}).get("asgi.scope", {})
    address = scope.get("client")
    return str(address[0]) if address else client.ip or "unknown"


def limit_reports() -> None:
    """Have pages log what went wrong in them as one bounded line, now and then.

    NiceGUI logs all of it, at once.
    """
    allowance = Allowance(5, timedelta(seconds=2))

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
