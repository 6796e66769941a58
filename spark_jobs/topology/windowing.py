"""The settings of a windowed bolt, checked and read: its windows, timestamps and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from tiercel.spark_jobs.bolts.bolt import ArrowBolt, AsyncBolt, BasicBolt, BatchBolt, Bolt
from tiercel.spark_jobs.bolts.windowed_bolt import (
    AggregatingBolt,
    Session,
    Sliding,
    WindowedBolt,
    longest_held,
)
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.bolt_settings import grouped_by, stream_of
from tiercel.spark_jobs.topology.graph import BoltSpec, Subscription, Topology

# Microseconds of the units of timestamps that are numbers.
UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_LONGEST = timedelta(days=7)
_MOST_HELD = 10_000_000
_NOT_FOR_WINDOWS = ("ordered_by", "rate_limit", "rate_limit_by", "threads", "concurrency")
_OTHERS = (BasicBolt, Bolt, AsyncBolt, BatchBolt, ArrowBolt)
_DURATIONS = ("lag", "idle", "max_ahead")

# A component and one of its streams.
Source = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """The settings of one windowed bolt."""

    bolt: WindowedBolt
    # The fields that make a key, per source; empty: one window for all tuples of a task.
    keys: Mapping[Source, tuple[str, ...]]
    # The tasks that send to the bolt.
    source_tasks: tuple[int, ...]

    @property
    def unit_us(self) -> int:
        """Microseconds of one unit of timestamps that are numbers."""
        return UNITS[self.bolt.timestamp_unit]


def windowing_of(topology: Topology, component: str) -> Windowing | None:
    """Return the settings of a windowed bolt; None for any other.

    Only for a built topology, which ``check_windows`` has checked.
    """
    spec = topology.bolts[component]
    bolt = spec.bolt
    if not isinstance(bolt, WindowedBolt):
        return None
    tasks = [task for each in spec.subscriptions for task in topology.task_ids(each.component)]
    keyed = _is_keyed(bolt, spec)
    return Windowing(
        bolt=bolt,
        keys={_source(one): grouped_by(one) if keyed else () for one in spec.subscriptions},
        source_tasks=tuple(dict.fromkeys(tasks)),
    )


def _source(subscription: Subscription) -> Source:
    return subscription.component, subscription.stream


def _is_keyed(bolt: WindowedBolt, spec: BoltSpec) -> bool:
    return all(map(grouped_by, spec.subscriptions)) if bolt.keyed is None else bolt.keyed


def check_windows(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError for a windowed bolt that cannot run."""
    bolt = spec.bolt
    if not isinstance(bolt, WindowedBolt):
        return
    _check_kind(id_, bolt, spec)
    _check_values(id_, bolt)
    if bolt.once is True:
        _check_once(id_, bolt, spec)
    for subscription in spec.subscriptions:
        schema = topology.spec(subscription.component).streams[subscription.stream]
        if bolt.timestamp_field:
            _check_timestamp(id_, bolt, subscription, schema.arrow)
        _check_late(id_, bolt, spec, subscription, schema.arrow)
        if _is_keyed(bolt, spec):
            _check_key(id_, subscription, schema.arrow)
        if bolt.keyed and not grouped_by(subscription):
            raise TopologyError(
                f"bolt {id_!r} is keyed, and {stream_of(subscription)} does not come by a fields "
                "grouping: subscribe by .fields_grouping, or set keyed = False"
            )
    keys = [grouped_by(one) for one in spec.subscriptions]
    if _is_keyed(bolt, spec) and len({len(key) for key in keys}) > 1:
        raise TopologyError(
            f"bolt {id_!r} has keys of {len(keys[0])} fields from "
            f"{stream_of(spec.subscriptions[0])} and others from other streams: group all streams "
            "by equally many fields, or set keyed = False"
        )
    if _is_keyed(bolt, spec):
        _check_key_types(topology, id_, spec)


def _check_key_types(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError if equal keys of two streams would have windows apart."""
    found: dict[int, tuple[Any, str]] = {}
    for subscription in spec.subscriptions:
        schema = topology.spec(subscription.component).streams[subscription.stream]
        for place, name in enumerate(grouped_by(subscription)):
            field = schema.fields[schema.position(name)]
            said = f"{name!r} of {stream_of(subscription)}, which is {field.kind}"
            type_, other = found.setdefault(place, (_same_keys(field.arrow), said))
            if type_ != _same_keys(field.arrow):
                raise TopologyError(
                    f"bolt {id_!r} has windows by {other}, and by {said}: values of two types are "
                    "two keys; declare the fields with one type, or set keyed = False"
                )


def _same_keys(type_: pa.DataType) -> Any:
    """Return one value for all types whose equal values are one key."""
    if pa.types.is_integer(type_):
        return pa.types.is_integer
    return pa.types.is_decimal if pa.types.is_decimal(type_) else type_


def _check_key(id_: str, subscription: Subscription, columns: pa.Schema) -> None:
    for name in grouped_by(subscription):
        if pa.types.is_list(columns.field(name).type):
            raise TopologyError(
                f"bolt {id_!r} has windows by {name!r} of {stream_of(subscription)}, which is an "
                "array: group by a field that is none, or set keyed = False"
            )


def _check_kind(id_: str, bolt: WindowedBolt, spec: BoltSpec) -> None:
    others = [kind.__name__ for kind in _OTHERS if kind in type(bolt).__mro__]
    if others:
        raise TopologyError(
            f"bolt {id_!r} is both WindowedBolt and {others[0]}: derive it from one of them"
        )
    window = getattr(bolt, "window", None)
    if window is not None and not isinstance(window, (Sliding, Session)):
        raise TopologyError(
            f"bolt {id_!r}: window = {window!r:.60} is no window: write tumbling(…), "
            "Sliding(…, …) or Session(…), such as window = tumbling(timedelta(minutes=1))"
        )
    if window is None:
        raise TopologyError(
            f"bolt {id_!r} is a WindowedBolt without a window: set one, such as "
            "window = tumbling(timedelta(minutes=1))"
        )
    form: type[WindowedBolt] = WindowedBolt
    needed = ["execute"]
    if isinstance(bolt, AggregatingBolt):
        form = AggregatingBolt
        needed = ["create", "add", "result"]
        if isinstance(bolt.window, Session) or bolt.window.slide != bolt.window.length:
            needed.append("merge")
    for method in needed:
        if getattr(type(bolt), method) is getattr(form, method):
            raise TopologyError(f"bolt {id_!r} is {form.__name__} without {method}: write it")
    refused = [name for name in _NOT_FOR_WINDOWS if spec.overrides.get(name) is not None]
    refused += ["tick_tuple_freq_secs"] if "tick_tuple_freq_secs" in spec.overrides else []
    refused += ["retry"] if spec.retry is not None else []
    if refused:
        raise TopologyError(
            f"bolt {id_!r} is a WindowedBolt, for which there is no {refused[0]}: set it for a "
            "bolt before or behind it"
        )


def _check_values(id_: str, bolt: WindowedBolt) -> None:
    for name in _DURATIONS:
        value = getattr(bolt, name)
        if not isinstance(value, timedelta) or not timedelta(0) <= value <= _LONGEST:
            raise TopologyError(
                f"bolt {id_!r}: {name} must be a timedelta from 0 to {_LONGEST.days} days, not "
                f"{value!r:.60}"
            )
    if bolt.timestamp_unit not in UNITS:
        raise TopologyError(
            f"bolt {id_!r}: timestamp_unit must be one of {', '.join(UNITS)}, not "
            f"{bolt.timestamp_unit!r:.60}"
        )
    if type(bolt.max_held) is not int or not 1 <= bolt.max_held <= _MOST_HELD:
        raise TopologyError(
            f"bolt {id_!r}: max_held must be a number of tuples, 1 to {_MOST_HELD:,}, not "
            f"{bolt.max_held!r:.60}"
        )
    held = bolt.window.longest if isinstance(bolt.window, Session) else bolt.window.length
    if isinstance(held, timedelta) and held > _LONGEST:
        raise TopologyError(
            f"bolt {id_!r}: a window of {held} would hold its messages at the broker for longer "
            f"than {_LONGEST.days} days: keep such results in a StatefulBolt, or use data frames"
        )


def _check_once(id_: str, bolt: WindowedBolt, spec: BoltSpec) -> None:
    """Raise TopologyError if a copy of a message could not be told to be one."""
    window = bolt.window
    if isinstance(window, Sliding) and window.slide != window.length:
        again = isinstance(window.length, int) or not bolt.timestamp_field
        if again:
            raise TopologyError(
                f"bolt {id_!r} has once set, and its windows overlap and begin anew with each run: "
                "use tumbling(…), or durations with a timestamp_field"
            )
    if bolt.tells_expired:
        raise TopologyError(
            f"bolt {id_!r} has once set and tells_expired: it would hold tuples whose windows have "
            "closed; set one of the two"
        )
    if not _is_keyed(bolt, spec) and spec.parallelism > 1:
        raise TopologyError(
            f"bolt {id_!r} has once set, and a message that comes again may come to another of its "
            f"{spec.parallelism} tasks: subscribe by .fields_grouping, or set parallelism=1"
        )
    held = longest_held(bolt)
    if isinstance(bolt.once_retention, timedelta) and bolt.once_retention < held:
        raise TopologyError(
            f"bolt {id_!r}: once_retention is {bolt.once_retention}, and its windows hold a "
            f"message for {held}: raise once_retention"
        )


def _check_timestamp(
    id_: str, bolt: WindowedBolt, subscription: Subscription, schema: pa.Schema
) -> None:
    name = bolt.timestamp_field
    if not isinstance(name, str) or name not in schema.names:
        raise TopologyError(
            f"bolt {id_!r}: there is no field {name!r} for timestamp_field in "
            f"{stream_of(subscription)}; its fields are {', '.join(schema.names)}"
        )
    type_ = schema.field(name).type
    if not (
        pa.types.is_timestamp(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_)
    ):
        raise TopologyError(
            f"bolt {id_!r}: timestamp_field {name!r} of {stream_of(subscription)} is {type_}: it "
            "must be a timestamp, or a number"
        )


def _check_late(
    id_: str, bolt: WindowedBolt, spec: BoltSpec, subscription: Subscription, schema: pa.Schema
) -> None:
    if not bolt.late_stream:
        return
    if bolt.late_stream not in spec.streams or bolt.late_stream in spec.direct:
        raise TopologyError(
            f"bolt {id_!r}: late_stream {bolt.late_stream!r} is not among its streams: declare it "
            "in output_streams, with fields of the input"
        )
    for field in spec.streams[bolt.late_stream].arrow:
        found: Any = schema.field(field.name).type if field.name in schema.names else "not there"
        if found != field.type:
            raise TopologyError(
                f"bolt {id_!r}: field {field.name!r} of its late_stream is {field.type}, and in "
                f"{stream_of(subscription)} it is {found}: name fields that all inputs have"
            )
