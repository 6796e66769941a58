"""The names of streams: the default one, and the system's own.

User ids never begin with two underscores.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiercel.queues.values.schema import Schema

DEFAULT_STREAM = "default"

SYSTEM = "__system"
# As in Storm: no task of a topology has this id.
SYSTEM_TASK = -1
TICK = "__tick"
SYSTEM_STREAMS: Mapping[str, Schema] = {TICK: Schema.parse("rate_secs double")}


def is_system(component: str) -> bool:
    """Return True if this id is the system's own."""
    return component.startswith("__")
