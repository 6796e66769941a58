"""The settings of one bolt, read and checked: its order by key, its rate limit, its concurrency and
the size of its batches; and the bolts that execute in its steps.
"""

from __future__ import annotations

import dis
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any, cast
from uuid import UUID

import pyarrow as pa

from tiercel.acker.limits import Rate
from tiercel.queues.nouns import with_article
from tiercel.queues.values.schema import Field
from tiercel.spark_jobs.bolts.bolt import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    slots_of,
)
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.streams import is_system
from tiercel.spark_jobs.bolts.windowed_bolt import AnyBolt, WindowedBolt
from tiercel.spark_jobs.errors import ConfigValueError, TopologyError
from tiercel.spark_jobs.topology.config import Config, parse_rate
from tiercel.spark_jobs.topology.graph import (
    BoltSpec,
    Subscription,
    Topology,
    cycle_of,
    extra_task,
)
from tiercel.spark_jobs.topology.grouping import Fields, Shuffle, not_a_key

# Half the capacity of an inbox, so that the next batch is collected while one is executed.
_LARGEST = 10_000
_ON_ERROR = ("fail", "split")
_OTHERS = (StatefulBolt, BasicBolt, Bolt, AsyncBolt, ArrowBolt)
_KINDS = (AsyncBolt, StatefulBolt, BasicBolt, Bolt, BatchBolt, ArrowBolt, WindowedBolt)
_CONCURRENCY = "concurrency"
_THREADS = "threads"
# Concurrency of a plain bolt with a limit per value: tuples of different values may begin together.
_VALUES = 8


def named_fields(given: object) -> tuple[str, ...]:
    """Return the fields that a setting names, one or a list; empty for anything else."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names) if len(set(names)) == len(names) else ()


def check_common_fields(topology: Topology, id_: str, spec: BoltSpec, setting: str) -> None:
    """Raise TopologyError unless each field that the setting names is on every stream, with the
    same type: 5 and "5" are different keys.
    """
    given = spec.overrides[setting]
    names = named_fields(given)
    if not names:
        raise TopologyError(
            f"bolt {id_!r}: {setting} must be a field, or a list of fields, not {given!r:.60}"
        )
    kinds: dict[str, tuple[Field, Subscription]] = {}
    for subscription in spec.subscriptions:
        schema = topology.spec(subscription.component).streams[subscription.stream]
        for name in names:
            if name not in schema.names:
                raise TopologyError(
                    f"bolt {id_!r}: there is no field {name!r} for {setting} in "
                    f"{stream_of(subscription)}; its fields are {', '.join(schema.names)}"
                )
            field = schema.fields[schema.position(name)]
            if not field.is_key:
                raise TopologyError(
                    f"bolt {id_!r}: {setting} names {name!r}, which is {not_a_key(field)}; emit "
                    "the key as a field of its own"
                )
            first, source = kinds.setdefault(name, (field, subscription))
            if _kind(first) != _kind(field):
                raise TopologyError(
                    f"bolt {id_!r}: {setting} names {name!r}, which is "
                    f"{with_article(first.type)} in {stream_of(source)} and "
                    f"{with_article(field.type)} in {stream_of(subscription)}: declare one type"
                )


def stream_of(subscription: Subscription) -> str:
    """Name a stream for an error message."""
    return f"stream {subscription.stream!r} of {subscription.component!r}"


def _kind(field: Field) -> pa.DataType:
    # Keys of all integer types hash alike.
    return pa.int64() if pa.types.is_integer(field.arrow) else field.arrow


def ordered_by_of(spec: BoltSpec) -> tuple[str, ...]:
    """Return the fields that make a key; empty for a bolt without order.

    Only for a built topology, which ``check_ordering`` has checked.
    """
    return named_fields(spec.overrides.get("ordered_by"))


def check_ordering(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError unless the groupings send all tuples of one key to one task.

    This needs a fields grouping by all or some of the key's fields, the same fields in the same
    order for each stream: otherwise a key would have a different task per stream. Partial keys go
    to two tasks. Other groupings are refused even with one task, because ``tiercel rebalance`` may
    give the bolt more.
    """
    if spec.overrides.get("ordered_by") is None:
        return
    check_common_fields(topology, id_, spec, "ordered_by")
    names = ordered_by_of(spec)
    first = spec.subscriptions[0]
    for subscription in spec.subscriptions:
        grouped = grouped_by(subscription)
        if not grouped or not set(grouped) <= set(names):
            raise TopologyError(
                f"bolt {id_!r} is ordered by {', '.join(names)}, and {stream_of(subscription)} may "
                f"bring one key to several tasks: subscribe by {_call(subscription, names)}"
            )
        if grouped != grouped_by(first):
            raise TopologyError(
                f"bolt {id_!r} is ordered by {', '.join(names)}, and groups {stream_of(first)} by "
                f"{', '.join(grouped_by(first))} but {stream_of(subscription)} by "
                f"{', '.join(grouped)}: group both by the same fields in the same order"
            )


def grouped_by(subscription: Subscription) -> tuple[str, ...]:
    """Return the fields of a fields grouping; empty for any other, such as by partial keys."""
    grouping = subscription.grouping
    return grouping.fields if type(grouping) is Fields else ()


def _call(subscription: Subscription, names: tuple[str, ...]) -> str:
    return f".fields_grouping({', '.join(map(repr, (subscription.component, *names)))})"


@dataclass(frozen=True, kw_only=True, slots=True)
class BoltLimit:
    """The rate at which all tasks of a bolt may begin tuples."""

    rate: Rate
    # Each value of these fields has its own limit; empty: one limit for all tuples.
    by: tuple[str, ...] = ()


def limit_of(spec: BoltSpec) -> BoltLimit | None:
    """Return the limit of a bolt; None if it has none.

    Only for a built topology, which ``check_limit`` has checked.
    """
    written = spec.overrides.get("rate_limit")
    if written is None:
        return None
    by = named_fields(spec.overrides.get("rate_limit_by"))
    return BoltLimit(rate=parse_rate(written), by=by)


def rates_of(topology: Topology) -> dict[str, Rate]:
    """Return the rates of all bolts that have a limit."""
    limits = {component: limit_of(spec) for component, spec in topology.bolts.items()}
    return {component: limit.rate for component, limit in limits.items() if limit is not None}


def check_limit(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError for a limit that does not fit the bolt."""
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
            f"bolt {id_!r} has rate_limit_by and no rate_limit: set one, such as "
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


def stateful_bolts(topology: Topology) -> list[str]:
    """Return the bolts with a state; that of a windowed bolt has its marks of closed windows."""
    bolts = topology.bolts
    return [
        name
        for name, spec in bolts.items()
        if isinstance(spec.bolt, StatefulBolt)
        or (isinstance(spec.bolt, WindowedBolt) and spec.bolt.once)
    ]


def _check_kind(id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError for a bolt whose tuples do not begin one by one."""
    bolt = spec.bolt
    if isinstance(bolt, StatefulBolt) or not isinstance(bolt, (AsyncBolt, BasicBolt)):
        raise TopologyError(
            f"bolt {id_!r} has a rate_limit, which is for an AsyncBolt or a BasicBolt; this is "
            f"{with_article(kind_name(bolt))}: limit a BasicBolt before it"
        )


def kind_name(bolt: AnyBolt) -> str:
    return next(kind.__name__ for kind in _KINDS if isinstance(bolt, kind))


def at_once_of(spec: BoltSpec) -> int:
    """Return how many tuples each task of a bolt executes at once."""
    if isinstance(spec.bolt, AsyncBolt):
        concurrency: int = spec.overrides.get(_CONCURRENCY, spec.bolt.concurrency)
        return concurrency
    if isinstance(spec.bolt, BatchBolt):
        return int(_given(spec.bolt, spec.overrides)[0])
    return threads_of(spec)


def concurrency_of(spec: BoltSpec) -> int | None:
    """Return how many tuples may be in progress at once in each task of a bolt.

    None: it executes one after the other.
    """
    if isinstance(spec.bolt, AsyncBolt):
        return at_once_of(spec)
    if _THREADS not in spec.overrides and (limit := limit_of(spec)) is not None:
        # Executed one after the other, but each waits for its own permit.
        return max(limit.rate.most, _VALUES if limit.by else 1)
    return spec.overrides.get(_THREADS)


def threads_of(spec: BoltSpec) -> int:
    """Return the number of threads in each task of a ``BasicBolt``."""
    threads: int = spec.overrides.get(_THREADS, 1)
    return threads


def is_sink(bolt: AnyBolt) -> bool:
    """Return True for a built-in sink: its settings are arguments, and it is quick."""
    return hasattr(bolt, "needed_fields")


def is_only_shuffled(spec: BoltSpec) -> bool:
    """Return True if all streams are shuffled to the bolt."""
    return all(isinstance(one.grouping, Shuffle) for one in spec.subscriptions)


def takes_extra_tasks(topology: Topology, bolt: str) -> bool:
    """Return True if further tasks may take from the line of a bolt during a run.

    All its tuples must come through the line, and no task may have keys, an order or ticks of its
    own. A bolt with one task keeps one.
    """
    spec = topology.bolts[bolt]
    return (
        spec.parallelism > 1
        and not is_system(bolt)
        and is_only_shuffled(spec)
        and not isinstance(spec.bolt, (StatefulBolt, WindowedBolt))
        and not ordered_by_of(spec)
        and topology.config_of(bolt).tick_tuple_freq_secs is None
    )


def spreads_by_run(topology: Topology) -> bool:
    """Return True if a bolt has several tasks, and only a new run spreads them over executors."""
    return any(
        spec.parallelism > 1 and not takes_extra_tasks(topology, bolt)
        for bolt, spec in topology.bolts.items()
    )


def extra_hosts(
    topology: Topology, hosts: Sequence[Sequence[int]], first: int, count: int
) -> list[tuple[int, ...]]:
    """Return the extra tasks of ``count`` further Spark tasks, numbered from ``first``, above 0.

    Each is like one of ``hosts``, in turn, without the tasks of bolts that take no extra ones.
    Empty if the topology has no bolt that does.
    """
    taking = {bolt for bolt in topology.bolts if takes_extra_tasks(topology, bolt)}
    bases = [
        base
        for host in hosts
        if (base := [task for task in host if topology.component_of(task) in taking])
    ]
    return [
        tuple(extra_task(task, number) for task in bases[(number - 1) % len(bases)])
        for number in range(first, first + count)
        if bases
    ]


def check_concurrency(id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError for a bolt whose settings of concurrency do not fit it."""
    bolt = spec.bolt
    kind = kind_name(bolt)
    in_class = isinstance(bolt, BasicBolt) and hasattr(type(bolt), _CONCURRENCY)
    if in_class or (_CONCURRENCY in spec.overrides and not isinstance(bolt, AsyncBolt)):
        raise TopologyError(
            f"bolt {id_!r} has a concurrency, which is for an AsyncBolt; this is "
            f"{with_article(kind)}"
        )
    if _THREADS in spec.overrides and (
        isinstance(bolt, StatefulBolt) or not isinstance(bolt, BasicBolt)
    ):
        raise TopologyError(
            f"bolt {id_!r} has threads, which are for a BasicBolt; this is {with_article(kind)}: "
            "raise its parallelism"
        )
    places = concurrency_of(spec)
    setting = _CONCURRENCY if isinstance(bolt, AsyncBolt) else _THREADS
    if places is None and setting not in spec.overrides:
        return
    if not isinstance(places, int) or isinstance(places, bool) or places < 1:
        raise TopologyError(
            f"bolt {id_!r} has {setting} {places!r:.60}: it must be a whole number, at least 1"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """Bounds of one bolt's batches."""

    # Most tuples in a batch.
    size: int
    # Longest time that a tuple waits for others.
    wait_s: float


def batching_of(spec: BoltSpec) -> Batching | None:
    """Return the bounds of a bolt's batches; None for a bolt of another kind.

    Only for a built topology, which ``check_batching`` has checked.
    """
    if not isinstance(spec.bolt, BatchBolt):
        return None
    size, wait_ms = _given(spec.bolt, spec.overrides)
    return Batching(size=size, wait_s=wait_ms / 1000)


def check_batching(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError for a ``BatchBolt`` that cannot run."""
    bolt = spec.bolt
    if not isinstance(bolt, BatchBolt):
        return
    others = [kind.__name__ for kind in _OTHERS if kind in type(bolt).__mro__]
    if others:
        raise TopologyError(
            f"bolt {id_!r} is both BatchBolt and {others[0]}: derive it from one of them, and put "
            "the work of the other into a bolt of its own"
        )
    if type(bolt).execute_batch is BatchBolt.execute_batch:
        raise TopologyError(
            f"bolt {id_!r} is a BatchBolt without execute_batch: write"
            " `def execute_batch(self, tuples, collector)`"
        )
    size, wait_ms = _given(bolt, spec.overrides)
    if type(size) is not int or not 1 <= size <= _LARGEST:
        raise TopologyError(
            f"bolt {id_!r}: size must be a number of tuples, 1 to {_LARGEST:,}, not {size!r:.60}"
        )
    _check_wait(id_, wait_ms, topology.config)
    if bolt.on_error not in _ON_ERROR:
        raise TopologyError(
            f'bolt {id_!r}: on_error must be "fail" or "split", not {bolt.on_error!r:.60}'
        )


def _check_wait(id_: str, wait_ms: Any, config: Config) -> None:
    number = isinstance(wait_ms, (int, float)) and not isinstance(wait_ms, bool)
    if not (number and math.isfinite(wait_ms) and wait_ms >= 0):
        raise TopologyError(
            f"bolt {id_!r}: wait_ms must be a number of milliseconds, not {wait_ms!r:.60}"
        )
    timeout_ms = 1000 * config.message_timeout_secs
    if config.enable_message_timeouts and wait_ms >= timeout_ms:
        raise TopologyError(
            f"bolt {id_!r} waits {wait_ms:g} ms for a batch, and its messages time out after"
            f" {timeout_ms:g}: lower wait_ms, or raise message_timeout_secs"
        )


def _given(bolt: BatchBolt, overrides: Mapping[str, Any]) -> tuple[Any, Any]:
    return overrides.get("size", bolt.size), overrides.get("wait_ms", bolt.wait_ms)


# Number of bolts that a task may execute beside its own. Each task makes a copy of each as it
# starts: without a limit, the tasks of 200 bolts in a row do not start within a minute.
LONGEST_ROW = 16


def chain_of(topology: Topology, component: str) -> tuple[str, ...]:
    """Return the bolts in a row behind a bolt whose tuples its tasks may execute in their own
    steps; empty if there are none.

    Each is a plain ``BasicBolt`` with one subscription, shuffled from the bolt before it, which has
    the same parallelism. Of several such bolts behind one bolt, the first one continues the row.
    A row ends after ``LONGEST_ROW`` bolts: each task has a copy of every bolt in its row.
    """
    row: list[str] = []
    last = component
    if topology.config.chaining and _may_chain(topology, last):
        while len(row) < LONGEST_ROW and (following := _next_in_row(topology, last)) is not None:
            row.append(following)
            last = following
    return tuple(row)


def _next_in_row(topology: Topology, component: str) -> str | None:
    return next(
        (
            bolt
            for stream in topology.bolts[component].streams
            for bolt, _ in topology.subscribers(component, stream)
            if _follows(topology, component, bolt)
        ),
        None,
    )


def _follows(topology: Topology, component: str, bolt: str) -> bool:
    """Return True if a bolt that subscribes to this component may execute in its steps."""
    spec = topology.bolts[bolt]
    timeouts = {topology.config_of(one).execute_timeout_secs for one in (component, bolt)}
    return (
        [isinstance(one.grouping, Shuffle) for one in spec.subscriptions] == [True]
        and spec.parallelism == topology.bolts[component].parallelism
        and len(timeouts) == 1
        and _may_chain(topology, bolt)
        and _keeps_nothing(cast("BasicBolt", spec.bolt))
    )


def _may_chain(topology: Topology, bolt: str) -> bool:
    """Return True for a bolt that executes tuples one by one, as soon as they come, and acks them
    by returning.
    """
    spec = topology.bolts[bolt]
    return (
        isinstance(spec.bolt, BasicBolt)
        and not isinstance(spec.bolt, (StatefulBolt, Bolt, ArrowBolt, BatchBolt))
        and not is_system(bolt)
        and concurrency_of(spec) is None
        and not ordered_by_of(spec)
        and spec.retry is None
        and topology.config_of(bolt).tick_tuple_freq_secs is None
        and not cycle_of(topology, topology.task_ids(bolt)[0])
    )


# Types of values that cannot be changed.
_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, type, FunctionType, re.Pattern),
    *(Decimal, date, time, timedelta, tzinfo, PurePath, Enum, UUID),
)
_NOT_WITH_TUPLES = ("__init__", "prepare", "cleanup")


def _keeps_nothing(bolt: BasicBolt) -> bool:
    own = vars(bolt).items()
    values = [value for name, value in own if name not in bolt.transient]
    kind: Any = type(bolt)
    return not slots_of(kind) and keeps_nothing(values) and not _assigns(kind)


def keeps_nothing(attributes: Iterable[Any]) -> bool:
    """Return True if none of these values of attributes can be changed.

    A bolt that executes in another's step has no snapshot, so its attributes must not change.
    """
    return all(map(_is_constant, attributes))


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    return isinstance(value, _CONSTANTS)


def _assigns(bolt: type[BasicBolt]) -> bool:
    """Return True if a method that works on tuples, of the bolt or of a mixin, assigns an attribute
    that is not transient.

    An assignment in another function is noticed when it happens: the tuples of that step are
    executed again, apart.
    """
    assigned: set[str] = set()
    for base in bolt.__mro__:
        for name, member in vars(base).items() if base not in BasicBolt.__mro__ else ():
            if isinstance(member, cached_property):
                assigned.add(name)
            elif name not in _NOT_WITH_TUPLES:
                assigned.update(_assigned_by(member))
    return not assigned <= set(bolt.transient)


def _assigned_by(member: object) -> set[str]:
    """Return the attributes that a method or a property assigns, also behind decorators."""
    assigned: set[str] = set()
    left, seen = [member], set()
    while left:
        one = left.pop()
        function = getattr(one, "fget", None) or getattr(one, "__func__", one)
        if isinstance(function, FunctionType) and function not in seen:
            seen.add(function)
            assigned.update(_assigned(function.__code__))
            for cell in function.__closure__ or ():
                with suppress(ValueError):  # an empty cell
                    left.append(cell.cell_contents)
    return assigned


def _assigned(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"STORE_ATTR", "DELETE_ATTR"}:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _assigned(constant)
