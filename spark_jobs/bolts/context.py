"""The context that a bolt task is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiercel.queues.spout import TaskContext


@dataclass(frozen=True, kw_only=True)
class TopologyContext(TaskContext):
    """Context that a bolt task is given.

    * ``sources``: the component and the stream of each subscription.
    """

    sources: Sequence[tuple[str, str]]
