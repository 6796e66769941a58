"""Waits where a Redis that is away for a moment would cost a Python process, or the whole run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from acker import LedgerUnavailableError

_PATIENCE = timedelta(seconds=15)
"""Longer than a failover or a restart. Who waits cannot be told to end, and is killed by then."""

P = ParamSpec("P")
T = TypeVar("T")


def patiently(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it, again and again for a while if Redis does not answer; what it raises at last, and all else, is raised.

    Spark would repeat what failed too, in a new process that takes seconds to start; where it looks for offsets, not at all.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(LedgerUnavailableError),
        wait=wait_random_exponential(multiplier=0.1, max=1),
        stop=stop_after_delay(_PATIENCE.total_seconds()),
        reraise=True,
    )
    return retrying(call, *args, **kwargs)
