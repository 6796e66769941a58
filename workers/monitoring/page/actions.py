"""Actions of the page that need the token: activate, deactivate, look at dead letters and put
them back, look at tracebacks.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import TypeVar

from nicegui import run, ui

from tiercel.acker.errors import AckerError
from tiercel.acker.metrics.redis_counters import RedisMetrics
from tiercel.acker.metrics.traces import KnownError
from tiercel.queues.errors import QueuesError
from tiercel.queues.nouns import counted
from tiercel.queues.publishing import dead_letters
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.printable import printable
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.workers.control.audit import log_action
from tiercel.workers.control.contract import State
from tiercel.workers.control.steering import Steering
from tiercel.workers.errors import WorkersError
from tiercel.workers.monitoring.page.limits import peer_of
from tiercel.workers.monitoring.page.token import TokenPrompt
from tiercel.workers.monitoring.shelf import Shelf
from tiercel.workers.monitoring.watcher import Addresses

Result = TypeVar("Result")
_EXPECTED = (AckerError, QueuesError, WorkersError)
_ORDERS = {State.ACTIVE: "activate", State.DEACTIVATED: "deactivate"}
_EFFECTS = {
    State.ACTIVE: "Activate {}: its spouts take messages again.",
    State.DEACTIVATED: (
        "Deactivate {}: its spouts take no more messages; what is in flight goes on."
    ),
}


class Actions:
    """Runs actions on a thread of their own, and reports and logs them."""

    def __init__(self, addresses: Addresses, shelf: Shelf, prompt: TokenPrompt) -> None:
        self._addresses = addresses
        self._shelf = shelf
        self._prompt = prompt

    async def turn(self, topology: str, state: State) -> None:
        """Activate or deactivate."""

        def order() -> list[str]:
            said: list[str] = []
            Steering.open(
                self._addresses.redis_urls[0], topology, said.append, threading.Event()
            ).turn(state)
            return said

        async def action() -> None:
            for line in await _tried(_ORDERS[state], topology, order, "; ".join) or ():
                ui.notify(line, type="positive")

        await self._prompt.let(_ORDERS[state], _EFFECTS[state].format(topology), action)

    async def requeue(
        self, queue: str, chosen: Sequence[str] | None, done: Callable[[], Awaitable[None]]
    ) -> None:
        """Put dead letters back: those with these ids, or all."""

        def put_back() -> int:
            url = self._addresses.amqp_url or ""
            return (
                dead_letters.requeue(url, queue)
                if chosen is None
                else len(dead_letters.requeue_chosen(url, queue, chosen))
            )

        async def action() -> None:
            moved = await _tried("requeue", queue, put_back, _put_back)
            if moved is not None:
                ui.notify(f"{_put_back(moved)} into {queue}", type="positive")
                if chosen is not None and moved < len(chosen):
                    ui.notify(
                        f"{len(chosen) - moved} of the chosen ones were not there any more",
                        type="warning",
                    )
            await done()

        await self._prompt.let(
            "put back",
            f"Put {_number(chosen)} of {queue} back, to be delivered as if they were new.",
            action,
        )

    async def look(self, queue: str, done: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Look at the oldest dead letters of a queue.

        Changes nothing, but their bodies may be confidential.
        """

        def letters() -> Sequence[DeadLetter]:
            return self._shelf.look(queue)

        async def action() -> None:
            done(await _tried("look at", f"the dead letters of {queue}", letters, _shown) or ())

        await self._prompt.let(
            "show", f"Show the bodies of the dead letters of {queue}. Nothing is changed.", action
        )

    async def tracebacks(self, topology: str, done: Callable[[Sequence[KnownError]], None]) -> None:
        """Look at what bolts raised, with the lines of code that it went through."""

        def known() -> Sequence[KnownError]:
            with closing(RedisMetrics(self._addresses.redis_urls[0], topology)) as metrics:
                return metrics.traces()

        async def action() -> None:
            done(await _tried("look at", f"the tracebacks of {topology}", known, _shown) or ())

        await self._prompt.let(
            "show",
            f"Show the code that errors of {topology} went through. Nothing is changed.",
            action,
        )


def _number(chosen: Sequence[str] | None) -> str:
    return "all dead letters" if chosen is None else f"{len(chosen)} chosen dead letters"


def _shown(things: Sequence[object]) -> str:
    return f"showed {len(things)}"


def _put_back(moved: int) -> str:
    return f"put {counted(moved, 'message')} back"


async def _tried(
    action: str, target: str, function: Callable[[], Result], outcome: Callable[[Result], str]
) -> Result | None:
    """Return what it returns; None if a server refused or did not answer, which is said.

    Either is logged.
    """
    origin = peer_of(ui.context.client)
    try:
        result = await run.io_bound(function)
    except _EXPECTED as error:
        log_action(action, target, f"failed: {error}", origin)
        ui.notify(printable(redact(str(error)), kept="\n"), type="negative", multi_line=True)
        return None
    # None: the monitor ends meanwhile, and its threads go on for a moment.
    log_action(action, target, "not waited for" if result is None else outcome(result), origin)
    return result
