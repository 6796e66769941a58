"""The same topology with other kinds of bolts: what holds for a BasicBolt holds for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tiercel import AsyncBolt, BasicBolt, StatefulBolt, Topology

_THREADS = 64


class Awaiting(AsyncBolt):
    """A BasicBolt as an AsyncBolt: waits a turn of the loop before and after each call."""

    def __init__(self, inner: BasicBolt) -> None:
        self.inner = inner

    async def prepare(self, config: Any, context: Any) -> None:
        await asyncio.sleep(0)
        self.inner.prepare(config, context)

    async def execute(self, tup: Any, collector: Any) -> None:
        await asyncio.sleep(0)
        self.inner.execute(tup, collector)
        await asyncio.sleep(0)

    async def flush(self, collector: Any) -> None:
        await asyncio.sleep(0)
        self.inner.flush(collector)

    async def cleanup(self) -> None:
        await asyncio.sleep(0)
        self.inner.cleanup()


def with_kind(topology: Topology, kind: str) -> Topology:
    """The topology with each BasicBolt as an AsyncBolt (``async``) or with ``threads``."""
    bolts = {
        component: _changed(spec, kind)
        if isinstance(spec.bolt, BasicBolt) and not isinstance(spec.bolt, StatefulBolt)
        else spec
        for component, spec in topology.bolts.items()
    }
    return replace(topology, bolts=bolts)


def _changed(spec: Any, kind: str) -> Any:
    if kind == "async":
        return replace(spec, bolt=Awaiting(spec.bolt))
    return replace(spec, overrides={**spec.overrides, "threads": _THREADS})
