"""The life of a worker process: signals that end it, a heartbeat for health checks, and patience
while Redis is away.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from tenacity import Retrying, retry_if_exception_type, wait_random_exponential

from tiercel.acker.errors import RedisUnavailableError

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_FIRST_WAIT_S = 0.1


def on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGINT and SIGTERM, in a thread; a second signal ends the process at once.

    Not in the handler, which may interrupt a wait for the very event that ``stop`` sets, and would
    then wait for its lock for ever. ``SimpleQueue.put`` is safe in a handler.
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


class Heartbeat:
    """A file that the loop touches while it turns; a health check looks at its age."""

    def __init__(self, path: Path | None = None) -> None:
        """``path`` of None: there is no health check."""
        self._path = path

    def beat(self) -> None:
        """Touch the file; call it about once per second.

        A failure is logged once, and the work goes on.
        """
        if self._path is None:
            return
        try:
            self._path.touch()
        except OSError as error:
            self._path = None
            log.warning("no heartbeat: %s", error, extra={"event": "heartbeat_failed"})


def patiently(
    stopped: threading.Event, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """Repeat the call until Redis answers, and return its result; None if ``stopped`` came first.

    Logs once that Redis is away. Other errors are raised.
    """
    try:
        # The first call is without tenacity, which takes longer than a read of the outcome feed.
        return call(*args, **kwargs)
    except RedisUnavailableError as error:
        if stopped.is_set():
            return None
        log.warning("%s; trying again", error, extra={"event": "redis_away"})
    stopped.wait(_FIRST_WAIT_S)

    def sleep(seconds: float) -> None:
        stopped.wait(seconds)

    retrying = Retrying(
        retry=retry_if_exception_type(RedisUnavailableError),
        wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=2),
        stop=lambda _: stopped.is_set(),
        sleep=sleep,
        retry_error_callback=lambda _: None,
    )
    return retrying(call, *args, **kwargs)
