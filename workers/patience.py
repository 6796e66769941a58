"""What a worker does while Redis is away: it waits, says so once, and is not held up when it shall end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from acker import LedgerUnavailableError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def patiently(stopped: threading.Event, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Call it until Redis answers; returns what it does, or None if ``stopped`` came first. What else it raises is raised."""

    def sleep(seconds: float) -> None:
        stopped.wait(seconds)

    retrying = Retrying(
        retry=retry_if_exception_type(LedgerUnavailableError),
        wait=wait_random_exponential(multiplier=0.1, max=2),
        stop=lambda _: stopped.is_set(),
        sleep=sleep,
        before_sleep=_say_once,
        retry_error_callback=lambda _: None,
    )
    return retrying(call, *args, **kwargs)


def _say_once(state: RetryCallState) -> None:
    """The first of a row of failures."""
    if state.attempt_number == 1 and state.outcome is not None:
        log.warning("%s; trying again", state.outcome.exception(), extra={"event": "redis_away"})
