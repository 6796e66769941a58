"""The token of the monitor: asked for once per page, and not to be guessed."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from nicegui import ui

from tiercel.workers.monitoring.page.allowance import Allowance
from tiercel.workers.monitoring.page.limits import peer_of

log = logging.getLogger(__name__)


class Lock:
    """Compares what is given with the token.

    Bounds the wrong ones of all pages and peers together.
    """

    def __init__(self, token: str, allowance: Allowance | None = None) -> None:
        self._token = token.encode()
        self._allowance = allowance or Allowance(5, timedelta(seconds=10))
        self._closed = False

    def refusal(self, given: str, peer: str) -> str | None:
        """Return None if it is the token, else what to tell; wrong ones are logged with the peer.

        While there were too many the right one is refused too, or guessing could go on.
        """
        wait_s = self._allowance.wait_s
        if wait_s > 0:
            # Once per closing, or the log would be what is flooded.
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


class TokenPrompt:
    """Asks for the token, until one page has given it."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._given = False
        self._asking = False
        with ui.dialog() as self._dialog, ui.card():
            ui.label(
                "This needs the token that tiercel monitor printed when it started, or "
                "TIERCEL_TOKEN."
            )
            self._input = ui.input("token", password=True).classes("w-full").props("autofocus")
            self._input.on("keydown.enter", lambda: self._dialog.submit(self._input.value))
            with ui.row():
                ui.button("OK", on_click=lambda: self._dialog.submit(self._input.value))
                ui.button("Cancel", on_click=lambda: self._dialog.submit(None)).props("flat")

    async def let(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do it if the token was given, now or before."""
        if self._given or await self._ask():
            await action()

    async def _ask(self) -> bool:
        if self._asking:  # the dialog is open already
            return False
        self._asking = True
        try:
            self._input.value = ""
            given = await self._dialog
        finally:
            self._asking = False
        if given is None:
            return False
        refusal = self._lock.refusal(str(given), peer_of(ui.context.client))
        if refusal is not None:
            ui.notify(refusal, type="negative")
            return False
        self._given = True
        return True
