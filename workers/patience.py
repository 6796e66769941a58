"""Patience of a worker while Redis is away: it waits, says so once, and can still be stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tenacity import Retrying, retry_if_exception_type, wait_random_exponential

from tiercel.acker.errors import RedisUnavailableError

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.1
P = ParamSpec("P")
T = TypeVar("T")


def patiently(
    stopped: threading.Event, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """Call it until Redis answers; returns what it does, or None if ``stopped`` came first.

    What else it raises is raised.
    """
    try:
        # First without tenacity, which takes longer than a read of the outcome feed.
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
