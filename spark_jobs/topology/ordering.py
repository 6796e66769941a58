"""The order of a bolt's tuples by key, ``config={"ordered_by": "customer"}``: read and checked.

None is a key like any other: tuples without a customer go to one task, as fields grouping sends
them, and one after the other. So the promise has no exception. For tuples that need no order, use a
stream of their own to a bolt without it.
"""

from __future__ import annotations

from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.common_fields import (
    check_common_fields,
    named_fields,
    stream_of,
)
from tiercel.spark_jobs.topology.graph import BoltSpec, Subscription, Topology
from tiercel.spark_jobs.topology.grouping import Fields


def ordered_by_of(spec: BoltSpec) -> tuple[str, ...]:
    """Return the fields that make a key; empty for a bolt without order.

    Only for a topology that was built: ``check_ordering`` has looked at them.
    """
    return named_fields(spec.overrides.get("ordered_by"))


def check_ordering(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raises TopologyError unless the groupings bring all tuples of one key to one task.

    That is fields grouping by the fields of the key, or by some of them, and by the same ones in
    the same order from each stream: else the task of a key is another one per stream. Partial keys
    go to two tasks. Other groupings are refused with one task as well, for ``tiercel rebalance``
    may give the bolt more.
    """
    if spec.overrides.get("ordered_by") is None:
        return
    check_common_fields(topology, id_, spec, "ordered_by")
    names = ordered_by_of(spec)
    first = spec.subscriptions[0]
    for subscription in spec.subscriptions:
        grouped = _grouped_by(subscription)
        if not grouped or not set(grouped) <= set(names):
            raise TopologyError(
                f"bolt {id_!r} is ordered by {', '.join(names)}, and {stream_of(subscription)} may "
                f"bring one key to several tasks: subscribe by {_call(subscription, names)}"
            )
        if grouped != _grouped_by(first):
            raise TopologyError(
                f"bolt {id_!r} is ordered by {', '.join(names)}, and groups {stream_of(first)} by "
                f"{', '.join(_grouped_by(first))} but {stream_of(subscription)} by "
                f"{', '.join(grouped)}: group both by the same fields in the same order"
            )


def _grouped_by(subscription: Subscription) -> tuple[str, ...]:
    """The fields of a fields grouping; empty for any other, such as by partial keys."""
    grouping = subscription.grouping
    return grouping.fields if type(grouping) is Fields else ()


def _call(subscription: Subscription, names: tuple[str, ...]) -> str:
    return f".fields_grouping({', '.join(map(repr, (subscription.component, *names)))})"
