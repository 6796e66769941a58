"""Actions of the page that need the token, and the prompt that asks for it: activate, pause,
read dead letters, put them back and delete them, read tracebacks.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from nicegui import run, ui

from tiercel.acker.errors import AckerError
from tiercel.acker.metrics.contract import KnownError
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.queues.errors import QueuesError
from tiercel.queues.nouns import counted
from tiercel.queues.publishing import dead_letters
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import printable, redact
from tiercel.workers.control.contract import State
from tiercel.workers.control.steering import Steering, log_action
from tiercel.workers.errors import WorkersError
from tiercel.workers.monitoring.page.limits import Lock, peer_of
from tiercel.workers.monitoring.tables import requeue_question
from tiercel.workers.monitoring.watcher import Addresses, DeadLetterCache

Result = TypeVar("Result")
_EXPECTED = (AckerError, QueuesError, WorkersError)
_ORDERS = {State.ACTIVE: "activate", State.DEACTIVATED: "deactivate"}
_EFFECTS = {
    State.ACTIVE: "Activate {}: its spouts take messages again.",
    State.DEACTIVATED: (
        "Deactivate {}: its spouts take no more messages; messages in flight go on."
    ),
}
_PAUSED = (
    "Pause {bolt} of {topology}: its tasks finish their current tuples and take no more; messages "
    "that wait for it do not time out."
)
_RESUMED = "Resume {bolt} of {topology}: its tasks take tuples again."


class Actions:
    """Runs each action on its own thread, and reports and logs it."""

    def __init__(self, addresses: Addresses, cache: DeadLetterCache, prompt: TokenPrompt) -> None:
        self._addresses = addresses
        self._cache = cache
        self._prompt = prompt

    @property
    def trusted(self) -> bool:
        """True if the token was given on this page."""
        return self._prompt.given

    async def turn(self, topology: str, state: State) -> None:
        """Activate or deactivate."""
        says = _EFFECTS[state].format(topology)
        await self._order(_ORDERS[state], topology, "", says, lambda steer: steer.turn(state))

    async def pause(self, topology: str, bolt: str, *, paused: bool) -> None:
        """Pause a bolt, or let it go on."""
        word, says, order = (
            ("pause", _PAUSED, Steering.pause) if paused else ("resume", _RESUMED, Steering.resume)
        )
        says = says.format(bolt=bolt, topology=topology)
        await self._order(word, topology, bolt, says, lambda steer: order(steer, bolt))

    async def _order(
        self, word: str, topology: str, bolt: str, says: str, give: Callable[[Steering], None]
    ) -> None:
        target = f"{topology} {bolt}".rstrip()

        def order() -> list[str]:
            said: list[str] = []
            url = self._addresses.redis_urls[0]
            with closing(Steering.open(url, topology, said.append, threading.Event())) as steering:
                give(steering)
            return said

        async def action() -> None:
            for line in await _tried(word, target, order, "; ".join) or ():
                ui.notify(printable(line), type="positive")

        await self._prompt.let(word, says, action)

    async def requeue(
        self, queue: str, chosen: Sequence[str] | None, done: Callable[[], Awaitable[None]]
    ) -> None:
        """Put the dead letters with the chosen ids back, or all of them."""

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
                        f"{len(chosen) - moved} of the chosen letters were no longer there",
                        type="warning",
                    )
            await done()

        await self._prompt.let(
            "requeue",
            requeue_question(queue, None if chosen is None else len(chosen)),
            action,
        )

    async def delete(
        self, queue: str, chosen: Sequence[str], done: Callable[[], Awaitable[None]]
    ) -> None:
        """Delete the dead letters with the chosen ids for good; asks first, each time."""

        def delete() -> int:
            return len(dead_letters.delete_chosen(self._addresses.amqp_url or "", queue, chosen))

        async def action() -> None:
            deleted = await _tried("delete", queue, delete, _deleted)
            if deleted is not None:
                ui.notify(_deleted(deleted), type="positive")
            await done()

        many = counted(len(chosen), "dead letter")
        says = f"Delete {many} of {queue} for good? There is no way back."
        await self._prompt.let("delete", says, action, always=True)

    async def look(self, queue: str, done: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Read the oldest dead letters of a queue.

        Changes nothing, but needs the token because bodies may be confidential.
        """
        says = f"Show the bodies of the dead letters of {queue}. Nothing is changed."
        letters = partial(self._cache.look, queue)
        await self._read(says, f"the dead letters of {queue}", letters, done)

    async def tracebacks(self, topology: str, done: Callable[[Sequence[KnownError]], None]) -> None:
        """Read the tracebacks of errors that bolts raised."""

        def known() -> Sequence[KnownError]:
            with closing(RedisMetrics(self._addresses.redis_urls[0], topology)) as metrics:
                return metrics.traces()

        says = f"Show the code that errors of {topology} went through. Nothing is changed."
        await self._read(says, f"the tracebacks of {topology}", known, done)

    async def _read(
        self,
        says: str,
        target: str,
        read: Callable[[], Sequence[Result]],
        done: Callable[[Sequence[Result]], None],
    ) -> None:
        async def action() -> None:
            done(await _tried("look at", target, read, _shown) or ())

        await self._prompt.let("show", says, action)


def _shown(things: Sequence[object]) -> str:
    return f"showed {len(things)}"


def _put_back(moved: int) -> str:
    return f"put {counted(moved, 'message')} back"


def _deleted(gone: int) -> str:
    return f"deleted {counted(gone, 'dead letter')}"


async def _tried(
    action: str, target: str, function: Callable[[], Result], outcome: Callable[[Result], str]
) -> Result | None:
    """Call ``function`` on a thread, and log the action with its outcome.

    Returns its result; None if a server refused or did not answer, which the page shows.
    """
    origin = peer_of(ui.context.client)
    try:
        result = await run.io_bound(function)
    except _EXPECTED as error:
        log_action(action, target, f"failed: {error}", origin)
        ui.notify(printable(redact(str(error)), kept="\n"), type="negative", multi_line=True)
        return None
    # None: the monitor is stopping, and did not wait for the thread.
    log_action(action, target, "not waited for" if result is None else outcome(result), origin)
    return result


class TokenPrompt:
    """Asks for the token, once per page."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        # True if the right token was given.
        self.given = False
        self._asking = False
        with ui.dialog() as self._dialog, ui.card().style("width: 420px"):
            self._says = ui.label().classes("font-semibold").style("overflow-wrap: anywhere")
            self._needs = ui.label(f"This needs the monitor's token: {lock.hint}.")
            self._needs.classes("text-sm")
            self._input = ui.input("token", password=True, password_toggle_button=True)
            self._input.classes("w-full").props("autofocus").on("keydown.enter", self._try)
            with ui.row():
                self._button = ui.button("OK", on_click=self._try).props("no-caps")
                self._button.props('data-testid="token ok"')
                ui.button("cancel", on_click=lambda: self._dialog.submit(None)).props(
                    "flat no-caps"
                )

    async def let(
        self, does: str, says: str, action: Callable[[], Awaitable[None]], *, always: bool = False
    ) -> None:
        """Run the action if the token is given now, or was given before.

        ``does`` is a short name of the action, ``says`` describes its effect; with ``always`` the
        operator is asked to confirm it each time.
        """
        if (self.given and not always) or await self._ask(does, says):
            await action()

    async def _ask(self, does: str, says: str) -> bool:
        if self._asking:  # the dialog is open already
            return False
        self._asking = True
        self._says.set_text(says)
        self._button.set_text(does)
        self._needs.set_visibility(not self.given)
        self._input.set_visibility(not self.given)
        try:
            return bool(await self._dialog)
        finally:
            self._asking = False
            self._input.value = ""
            self._input.error = None

    def _try(self) -> None:
        """Check the typed token. A wrong one stays in the field, to be corrected."""
        if not self._asking:
            return
        refusal = None
        if not self.given:
            refusal = self._lock.refusal(str(self._input.value), peer_of(ui.context.client))
        if refusal is not None:
            self._input.error = refusal
            ui.notify(refusal, type="negative")
            return
        self.given = True
        self._dialog.submit(True)
