"""Reasons of failures, for tests in which the raising line does not matter."""

from __future__ import annotations

import re


def unplaced(reason: str) -> str:
    """Return the reason without the line of the user's code at its end.

    >>> unplaced("ValueError: no (shop/bolts.py:12)")
    'ValueError: no'
    """
    return re.sub(r" \([^()\s]+:\d+\)$", "", reason)
