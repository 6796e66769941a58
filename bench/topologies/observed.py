"""The spout of measured topologies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.probe import start_probe
from tiercel import QueueSpout, SpoutContext


class ObservedSpout(QueueSpout):
    """The queue's spout, with a probe in its worker."""

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        start_probe()
        super().open(config, context)
