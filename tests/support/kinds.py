"""The same topology with other kinds of bolts, which must behave like its BasicBolts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tiercel import (
    AsyncBolt,
    BasicBolt,
    BasicCollector,
    BatchBolt,
    BatchCollector,
    StatefulBolt,
    Topology,
    Tuple,
)

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


class OfOneTuple(BasicCollector):
    """The collector of a batch, with the interface that the inner BasicBolt expects."""

    def __init__(self, collector: BatchCollector, anchors: Tuple | tuple[Tuple, ...]) -> None:
        self._collector = collector
        self._anchors = anchors

    def emit(self, values: Sequence[Any], stream: str = "default") -> list[int]:
        return self._collector.emit(values, self._anchors, stream)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        self._collector.emit_direct(task, values, self._anchors, stream)

    def report_error(self, error: BaseException | str) -> None:
        self._collector.report_error(error)


class Batched(BatchBolt):
    """A BasicBolt as a BatchBolt: fails the tuples for which the inner bolt raises."""

    size = 64
    wait_ms = 10

    def __init__(self, inner: BasicBolt) -> None:
        self.inner = inner

    def prepare(self, config: Any, context: Any) -> None:
        self.inner.prepare(config, context)

    def execute_batch(self, tuples: Sequence[Tuple], collector: BatchCollector) -> None:
        for tup in tuples:
            try:
                self.inner.execute(tup, OfOneTuple(collector, tup))
            except Exception as error:  # noqa: BLE001 - what a bolt raises fails its tuple
                collector.report_error(error)
                collector.fail(tup, error)

    def flush(self, collector: BatchCollector) -> None:
        self.inner.flush(OfOneTuple(collector, ()))

    def cleanup(self) -> None:
        self.inner.cleanup()


def with_kind(topology: Topology, kind: str) -> Topology:
    """Return the topology with each BasicBolt as an AsyncBolt (``async``) or a BatchBolt
    (``batches``), or with ``threads``.
    """
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
    if kind == "batches":
        return replace(spec, bolt=Batched(spec.bolt))
    return replace(spec, overrides={**spec.overrides, "threads": _THREADS})
