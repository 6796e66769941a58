"""Log lines about a server that is away: per process, one when the outage begins and one when it
ends.

Each part of a process that waits for the server reports its failed calls and its first success.
The first report of an outage is logged, with what the process waits for; the end is logged when no
part waits any more. Imports no driver of a server: bolts, spout workers and the monitor use it for
Redis too.

``Spared`` is for a reader of many topologies, which waits once for a server that is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Literal

log = logging.getLogger(__name__)

# A nearly full server alternates between refusing and accepting, several times per second; so does
# one that refuses a single command. Within this time after a line, the same trouble is logged again
# only if it lasts.
_QUIET_S = 60.0
_LASTING_S = 2.0
_process = "this process"


def name_process(name: str) -> None:
    """Have the lines of this process call it by this name, such as "the driver"."""
    global _process  # noqa: PLW0603 - one name per process, as its component in the log
    _process = name


class Outage:
    """The outages of one server, as one process logs them. Thread-safe."""

    def __init__(
        self, server: Literal["RabbitMQ", "Redis"], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._is_redis = server == "Redis"
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: set[Hashable] = set()
        self._began = 0.0
        # True if the outage that lasts now has been logged, and if that line was about a refusal.
        self._told = self._told_refused = False
        self._told_at = float("-inf")
        self._told_reason = ""

    def begins(self, waiter: Hashable, error: BaseException | str) -> None:
        """Note that ``waiter`` waits for the server because of this error; call it again after each
        failed try.

        An outage that turns into a refusal, which needs an operator, is logged once more.
        """
        refused = getattr(error, "refused", False)
        now = self._clock()
        said = str(error)
        with self._lock:
            if not self._waiting:
                self._began = now
                self._told = self._told_refused = False
            self._waiting.add(waiter)
            is_news = (refused and not self._told_refused and not self._is_fresh(said, now)) or (
                not self._told and self._is_news(said, now)
            )
            if is_news:
                self._told = True
                self._told_refused = refused
                self._told_at = now
                self._told_reason = self._reason(said)
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "%s; %s waits for %s",
            said,
            _process,
            self._server,
            extra={"event": "redis_away" if self._is_redis else "broker_lost"},
        )

    def ends(self, waiter: Hashable) -> None:
        """Note that the server has answered ``waiter``, which may not have waited."""
        if waiter not in self._waiting:
            return
        with self._lock:
            self._waiting.discard(waiter)
            if self._waiting or not self._told:
                return
            self._told = False
            lasted_s = self._clock() - self._began
        log.info(
            "%s works again after %.0f s; %s goes on",
            self._server,
            lasted_s,
            _process,
            extra={
                "event": "redis_back" if self._is_redis else "broker_back",
                "lasted_s": round(lasted_s, 1),
            },
        )

    def leaves(self, waiter: Hashable) -> None:
        """Note that ``waiter`` no longer waits, without an answer: it has ended."""
        with self._lock:
            self._waiting.discard(waiter)

    def _is_news(self, said: str, now: float) -> bool:
        return not self._is_fresh(said, now) or now - self._began >= _LASTING_S

    def _is_fresh(self, said: str, now: float) -> bool:
        """Return True if the last line, a short time ago, had the same reason."""
        return self._reason(said) == self._told_reason and now - self._told_at < _QUIET_S

    def _reason(self, said: str) -> str:
        """Return the error without the call that met it: "cannot …: Redis is full (…)"."""
        return said[max(0, said.find(self._server)) :]


REDIS = Outage("Redis")


class Spared:
    """A server that is read for many topologies, one after the other, and that is left alone while
    it is away: otherwise each topology would wait for it. Not thread-safe.
    """

    def __init__(self, away: type[Exception]) -> None:
        """``away`` is the error of a read while the server is away."""
        self._kind = away
        # The last such error, and the time until which the next reads raise it.
        self._error = ""
        self._until = 0.0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Read the server in the block, unless it is away: then it is left alone for as long as it
        made the last read wait. Raises that error.
        """
        began = time.monotonic()
        if began < self._until:
            raise self._kind(self._error)
        try:
            yield
        except self._kind as error:
            ended = time.monotonic()
            self._error, self._until = str(error), ended + (ended - began)
            raise
