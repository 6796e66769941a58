"""SIGINT and SIGTERM: the first asks a process to end, the second ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable


def on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGINT and SIGTERM; a second signal ends the process at once."""

    def first(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, first)
