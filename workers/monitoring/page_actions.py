"""What the page can change: activate, deactivate, dead letters. Each asks for the token first."""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nicegui import run, ui

from acker.errors import AckerError
from queues import dead_letters
from queues.dead_letters import DeadLetter
from queues.errors import QueuesError
from workers.control import State
from workers.errors import WorkersError
from workers.monitoring.watcher import Servers
from workers.redaction import redact
from workers.steering import Steering

_WRONG_TOKEN_S = 1.0
Result = TypeVar("Result")
_EXPECTED = (AckerError, QueuesError, WorkersError)


class Guard:
    """Asks for the token, until one page has given it."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._given = False
        with ui.dialog() as self._dialog, ui.card():
            ui.label("This changes something: the token, please. tiercel monitor said it when it started.")
            self._input = ui.input("token", password=True).classes("w-full").props("autofocus")
            self._input.on("keydown.enter", lambda: self._dialog.submit(self._input.value))
            with ui.row():
                ui.button("OK", on_click=lambda: self._dialog.submit(self._input.value))
                ui.button("Cancel", on_click=lambda: self._dialog.submit(None)).props("flat")

    async def let(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do it if the token was given, now or before."""
        if not self._given:
            self._input.value = ""
            given = await self._dialog
            if given is None:
                return
            if not hmac.compare_digest(str(given).encode(), self._token.encode()):
                await asyncio.sleep(_WRONG_TOKEN_S)
                ui.notify("wrong token", type="negative")
                return
            self._given = True
        await action()


class Actions:
    """What is done, on a thread of its own, and what is said of it."""

    def __init__(self, servers: Servers, guard: Guard) -> None:
        self._servers, self._guard = servers, guard

    async def turn(self, topology: str, state: State) -> None:
        """Activate or deactivate."""

        def order() -> list[str]:
            said: list[str] = []
            Steering.open(self._servers.redis_urls[0], topology, said.append, threading.Event()).turn(state)
            return said

        async def action() -> None:
            for line in await _tried(order) or ():
                ui.notify(line, type="positive")

        await self._guard.let(action)

    async def requeue(self, queue: str, chosen: Sequence[str] | None, done: Callable[[], Awaitable[None]]) -> None:
        """Put dead letters back: those with these ids, or all."""

        def put_back() -> int:
            url = self._servers.amqp_url or ""
            return dead_letters.requeue(url, queue) if chosen is None else dead_letters.requeue_chosen(url, queue, chosen)

        async def action() -> None:
            moved = await _tried(put_back)
            if moved is not None:
                ui.notify(f"put {moved} messages back into {queue}", type="positive")
                if chosen is not None and moved < len(chosen):
                    ui.notify(f"{len(chosen) - moved} of the chosen ones were not there any more", type="warning")
            await done()

        await self._guard.let(action)

    async def letters(self, queue: str, limit: int) -> list[DeadLetter]:
        """The oldest dead letters of a queue. Changes nothing, and needs no token."""
        return await _tried(lambda: dead_letters.show(self._servers.amqp_url or "", queue, limit)) or []


async def _tried(function: Callable[[], Result]) -> Result | None:
    """What it returns; None if a server refused or did not answer, which is said."""
    try:
        return await run.io_bound(function)
    except _EXPECTED as error:
        ui.notify(redact(str(error)), type="negative", multi_line=True)
        return None
