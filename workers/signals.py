"""SIGINT and SIGTERM: the first asks a process to end, the second ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue


def on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGINT and SIGTERM, in a thread; a second signal ends the process at once.

    Not in the handler: it may have broken into a wait for the very event that ``stop`` sets, and
    would wait for its lock for ever. A ``SimpleQueue`` may be put into from there.
    """
    signals: SimpleQueue[int] = SimpleQueue()

    def first(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        signals.put(number)

    def attend() -> None:
        while signals.get():
            stop()

    threading.Thread(target=attend, name="signals", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, first)
