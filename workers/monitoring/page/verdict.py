"""The first thing on the page: how the topology is, where it hurts, and what can be done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

from nicegui import ui

from tiercel.spark_jobs.logs.printable import printable
from tiercel.workers.control.contract import State
from tiercel.workers.monitoring.health import Grade, Health, health_of
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.wording import span, when

# More of them would push what the page is about off the first screen.
_HURTS = 6
_GRADES = [grade.value for grade in Grade]
_ORDERS = {
    State.ACTIVE: ("activate", "activate: take messages again"),
    State.DEACTIVATED: ("deactivate", "deactivate: take no more messages"),
}


class Verdict:
    """The card with the badge, the hurts, and the button that applies."""

    def __init__(
        self, turn: Callable[[State], Awaitable[None]], on_pick: Callable[[str], None]
    ) -> None:
        """``turn`` gives an order, ``on_pick`` is called with a component that is pressed."""
        self._on_pick = on_pick
        self._shown: Health | None = None
        self._buttons: dict[State, ui.button] = {}
        with ui.element("section").classes("tiercel-card tiercel-state") as self._card:
            with ui.element("div").classes("tiercel-first"):
                self._badge = ui.label().classes("tiercel-badge").props('data-testid="badge"')
                with ui.element("div").classes("grow"):
                    self._state = ui.label().props('data-testid="state"')
                    self._driver = ui.label().classes("tiercel-faint")
                for state, (key, text) in _ORDERS.items():
                    button = ui.button(text, on_click=partial(turn, state))
                    button.props(f'dense outline no-caps data-testid="{key}"').classes("px-2")
                    button.set_visibility(False)
                    self._buttons[state] = button
            self._hurts = ui.element("div").classes("tiercel-hurts").props('data-testid="hurts"')

    def say(self, text: str) -> None:
        """Say this in place of a topology's state."""
        self._state.set_text(printable(text))
        self._badge.set_text("?")
        self._driver.set_text("")

    def show(self, seen: Overview, at: datetime) -> None:
        """Show how a topology is, as it was seen ``at``."""
        self._state.set_text(f"{seen.name} is {seen.state}")
        self._driver.set_text(_about(seen, at))
        for state, button in self._buttons.items():
            button.set_visibility(state is not seen.ordered)
        health = health_of(seen)
        if health == self._shown:
            return
        self._shown = health
        self._badge.set_text(health.badge)
        self._card.classes(remove=" ".join(_GRADES), add=health.grade.value)
        self._hurts.clear()
        with self._hurts:
            for hurt in health.hurts[:_HURTS]:
                self._hurt(hurt.grade, hurt.says, hurt.component)
            left = len(health.hurts) - _HURTS
            if left > 0:
                ui.label(f"and {left} more").classes("tiercel-faint")
            if health.grade is Grade.WELL:
                ui.label(
                    "nothing fails, no bolt is at its limit, there are no dead letters"
                ).classes("tiercel-faint")

    def _hurt(self, grade: Grade, says: str, component: str | None) -> None:
        text = says if component is None else f"{component} {says}"
        label: Any = ui.label(printable(text)).classes(f"tiercel-hurt {grade.value}")
        if component is not None:
            label.classes("opens").on("click", partial(self._on_pick, component))


def _about(seen: Overview, at: datetime) -> str:
    driver = seen.driver_at
    parts = [
        f"driver on {driver.host}, pid {driver.pid}, since {when(driver.since)}" if driver else "",
        f"counted for {span(seen.seconds)}",
        f"seen {when(at)}",
    ]
    return " · ".join(part for part in parts if part)
