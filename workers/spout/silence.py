"""Time in which nothing completes, after which more are tried: bolts may hold what they have until
others come.
"""

from __future__ import annotations


class Silence:
    """Patience that doubles where a trial fails.

    There the tasks were busy with what had timed out, which is in no tree any more: with more in
    flight all would time out behind it, for ever.
    """

    def __init__(self, patience_s: float) -> None:
        self._first_s = patience_s
        self._patience_s = patience_s
        self._tried = False

    def is_long(self, silent_s: float) -> bool:
        """Return True if nothing completed for so long that more are to be tried."""
        return silent_s >= self._patience_s

    def tried(self) -> None:
        """More are in flight now."""
        self._tried = True

    def timed_out(self) -> bool:
        """Return True if what was tried timed out: fewer must do for twice as long."""
        failed = self._tried
        self._tried = False
        if failed:
            self._patience_s *= 2
        return failed

    def ended(self) -> None:
        """Trees are quick."""
        self._patience_s = self._first_s
        self._tried = False
