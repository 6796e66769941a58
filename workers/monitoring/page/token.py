"""The token of the monitor: asked for once per page, and not to be guessed."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from nicegui import ui

from tiercel.workers.monitoring.page.limits import Allowance, peer_of

log = logging.getLogger(__name__)


class Lock:
    """Compares what is given with the token.

    Bounds the wrong ones of all pages and peers together.
    """

    def __init__(self, token: str, *, hint: str, allowance: Allowance | None = None) -> None:
        """``hint`` says where the operator finds the token."""
        self._token = token.encode()
        self.hint = hint
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
        with ui.dialog() as self._dialog, ui.card().style("width: 420px"):
            self._says = ui.label().classes("font-semibold").style("overflow-wrap: anywhere")
            ui.label(f"This needs the monitor's token: {lock.hint}.").classes("text-sm")
            self._input = ui.input("token", password=True, password_toggle_button=True)
            self._input.classes("w-full").props("autofocus").on("keydown.enter", self._try)
            with ui.row():
                self._button = ui.button("OK", on_click=self._try).props("no-caps")
                self._button.props('data-testid="token ok"')
                ui.button("cancel", on_click=lambda: self._dialog.submit(None)).props(
                    "flat no-caps"
                )

    async def let(self, does: str, says: str, action: Callable[[], Awaitable[None]]) -> None:
        """Do it if the token was given, now or before.

        ``does`` is the action in a word or two, ``says`` what will become of it.
        """
        if self._given or await self._ask(does, says):
            await action()

    async def _ask(self, does: str, says: str) -> bool:
        if self._asking:  # the dialog is open already
            return False
        self._asking = True
        self._says.set_text(says)
        self._button.set_text(does)
        try:
            return bool(await self._dialog)
        finally:
            self._asking = False
            self._input.value = ""
            self._input.error = None

    def _try(self) -> None:
        """Take what was typed. A wrong token stays there, to be mended."""
        if not self._asking:
            return
        refusal = self._lock.refusal(str(self._input.value), peer_of(ui.context.client))
        if refusal is not None:
            self._input.error = refusal
            ui.notify(refusal, type="negative")
            return
        self._given = True
        self._dialog.submit(True)
