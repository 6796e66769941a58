"""``tiercel top``: one topology in the terminal, again and again."""

from __future__ import annotations

import threading
from contextlib import closing

from rich.console import Console, Group, RenderableType
from rich.live import Live

from tiercel.acker.metrics.windows import Window
from tiercel.workers.cells import cell
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.screen import top_view
from tiercel.workers.monitoring.watcher import Addresses, Look, Watcher

_LOOK_S = 1.0

WINDOWS = {
    "10m": Window.TEN_MINUTES,
    "3h": Window.THREE_HOURS,
    "1d": Window.ONE_DAY,
    "all": Window.ALL_TIME,
}


def window_named(name: str) -> Window:
    """Raises UsageError if there is no such window."""
    if name not in WINDOWS:
        raise UsageError(f"there is no window {name!r}; there are {', '.join(WINDOWS)}")
    return WINDOWS[name]


def run_top(addresses: Addresses, topology: str, window: Window, stopped: threading.Event) -> None:
    """Show it each second until ``stopped``; once if the output is no terminal."""
    console = Console()
    with closing(Watcher(addresses)) as watcher:
        if not console.is_terminal:
            console.print(view_of(watcher.look(topology, window), window))
            return
        with Live(
            console=console, screen=True, auto_refresh=False, vertical_overflow="ellipsis"
        ) as live:
            while not stopped.is_set():
                live.update(view_of(watcher.look(topology, window), window), refresh=True)
                stopped.wait(_LOOK_S)


def view_of(look: Look, window: Window) -> RenderableType:
    """Render one look."""
    if look.overview is None:
        return Group(
            *(cell(line, "bold red") for line in look.problems or ["no such topology any more"])
        )
    name = next(name for name, each in WINDOWS.items() if each is window)
    return top_view(look.overview, name, look.problems)
