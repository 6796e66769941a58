"""Things in Redis that cannot be read are passed over, with one line each."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

_MOST = 1_000


class Unreadable:
    """Remembers what it has said.

    A look every two seconds says the same thing once, until the thing changes.
    """

    def __init__(self, advice: str) -> None:
        """``advice`` says what follows, or what to do: the end of each line."""
        self._advice = advice
        self._said: dict[str, int] = {}

    def pass_over(self, what: str, content: bytes, why: Exception) -> None:
        """Say that ``what`` is passed over."""
        if self._said.get(what) == hash(content):
            return
        if len(self._said) >= _MOST:
            self._said.clear()
        self._said[what] = hash(content)
        said = str(why).partition("\n")[0][:200] or type(why).__name__
        log.warning(
            "passing over %s in Redis: %s; %s",
            what,
            said,
            self._advice,
            extra={"event": "unreadable_in_redis"},
        )
