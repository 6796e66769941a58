"""The limit of a bolt, ``config={"rate_limit": "100/s", "rate_limit_by": "tenant"}``: read and
checked.

It is one limit for all tasks of the bolt. With ``rate_limit_by`` each value of these fields has one
of its own, and None is a value like any other: tuples without a tenant share one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiercel.acker.limits import Rate
from tiercel.spark_jobs.bolts.arrow_bolt import ArrowBolt
from tiercel.spark_jobs.bolts.async_bolt import AsyncBolt
from tiercel.spark_jobs.bolts.batch_bolt import BatchBolt
from tiercel.spark_jobs.bolts.bolt import BasicBolt, Bolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.errors import ConfigValueError, TopologyError
from tiercel.spark_jobs.topology.common_fields import check_common_fields, named_fields
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology
from tiercel.spark_jobs.topology.ordering import ordered_by_of
from tiercel.spark_jobs.topology.rates import parse_rate


@dataclass(frozen=True, kw_only=True, slots=True)
class BoltLimit:
    """The rate at which all tasks of a bolt may begin tuples."""

    rate: Rate
    # The fields whose values have a limit each; empty if there is one for all.
    by: tuple[str, ...] = ()


def limit_of(spec: BoltSpec) -> BoltLimit | None:
    """Return the limit of a bolt; None if it has none.

    Only for a topology that was built: ``check_limit`` has looked at it.
    """
    written = spec.overrides.get("rate_limit")
    if written is None:
        return None
    by = named_fields(spec.overrides.get("rate_limit_by"))
    return BoltLimit(rate=parse_rate(written), by=by)


def rates_of(topology: Topology) -> dict[str, Rate]:
    """Return the rates of those bolts that have a limit."""
    limits = {component: limit_of(spec) for component, spec in topology.bolts.items()}
    return {component: limit.rate for component, limit in limits.items() if limit is not None}


def check_limit(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raises TopologyError for a limit that does not fit the bolt."""
    try:
        limit = limit_of(spec)
    except ConfigValueError as error:
        raise TopologyError(f"bolt {id_!r}, rate_limit: {error}") from error
    if limit is not None:
        _check_kind(id_, spec)
    if spec.overrides.get("rate_limit_by") is None:
        return
    if limit is None:
        raise TopologyError(
            f"bolt {id_!r} has rate_limit_by and no rate_limit: say how many per time, such as "
            '"rate_limit": "100/s"'
        )
    check_common_fields(topology, id_, spec, "rate_limit_by")
    ordered_by = ordered_by_of(spec)
    if ordered_by and not set(limit.by) <= set(ordered_by):
        raise TopologyError(
            f"bolt {id_!r} is ordered by {', '.join(ordered_by)} and has a rate limit by "
            f"{', '.join(limit.by)}, so that tuples of one key could wait for different limits: "
            "name the limit's fields in ordered_by too"
        )


def _check_kind(id_: str, spec: BoltSpec) -> None:
    """Raises TopologyError for a bolt whose tuples do not begin one by one."""
    bolt = spec.bolt
    if isinstance(bolt, StatefulBolt) or not isinstance(bolt, (AsyncBolt, BasicBolt)):
        kind = next(
            base.__name__
            for base in (StatefulBolt, BatchBolt, ArrowBolt, Bolt)
            if isinstance(bolt, base)
        )
        raise TopologyError(
            f"bolt {id_!r} has a rate_limit, which is for an AsyncBolt or a BasicBolt; this is of "
            f"the kind {kind}: limit a BasicBolt before it"
        )
