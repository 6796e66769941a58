"""The speed and latency of a topology and its components now: in the last ten seconds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tiercel.acker.metrics.histogram import percentile
from tiercel.acker.metrics.windows import Counts, total_of
from tiercel.workers.control.graph import Graph
from tiercel.workers.monitoring.raw import Raw

# Rates are counts per thousand seconds.
_PER_SECOND = 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """One component now."""

    # Per second: complete trees of a spout, executed tuples of a bolt.
    a_second: float = 0.0
    failed_a_second: float = 0.0
    # Of a spout the median from emit to complete tree, of a bolt the mean time in ``execute``;
    # None if there was none.
    latency_ms: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """A topology now."""

    # False at the first look, before there is anything to compare with.
    known: bool = False
    acked_a_second: float = 0.0
    failed_a_second: float = 0.0
    # From emit to complete tree; None if none was complete.
    p50_ms: float | None = None
    p99_ms: float | None = None
    components: Mapping[str, Speed] = field(default_factory=dict)

    def of(self, component: str) -> Speed:
        """Return the speed of a component."""
        return self.components.get(component, _STILL)


_STILL = Speed()
STANDSTILL = Flow()


def flow_of(raw: Raw) -> Flow:
    """Return what the rates say."""
    spouts = _together(raw.graph, raw.rates)
    bolts = {bolt.name: _bolt_speed(total_of(raw.rates, bolt.name)) for bolt in raw.graph.bolts}
    own = {spout.name: _spout_speed(total_of(raw.rates, spout.name)) for spout in raw.graph.spouts}
    return Flow(
        known=bool(raw.rates),
        acked_a_second=spouts["acked"] / _PER_SECOND,
        failed_a_second=spouts["failed"] / _PER_SECOND,
        p50_ms=percentile(spouts, 0.5),
        p99_ms=percentile(spouts, 0.99),
        components=own | bolts,
    )


def _together(graph: Graph, rates: Counts) -> Counter[str]:
    total: Counter[str] = Counter()
    for spout in graph.spouts:
        total.update(total_of(rates, spout.name))
    return total


def _spout_speed(rates: Counter[str]) -> Speed:
    return Speed(
        a_second=rates["acked"] / _PER_SECOND,
        failed_a_second=rates["failed"] / _PER_SECOND,
        latency_ms=percentile(rates, 0.5),
    )


def _bolt_speed(rates: Counter[str]) -> Speed:
    executed = rates["executed"]
    return Speed(
        a_second=executed / _PER_SECOND,
        failed_a_second=rates["failed"] / _PER_SECOND,
        latency_ms=rates["execute_ns"] / 1e6 / executed if executed else None,
    )
