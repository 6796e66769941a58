"""Builds a topology: its components, who subscribes to what, and checks that it can run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, get_args

from tiercel.acker.ids import EXTRA
from tiercel.queues.errors import SchemaError
from tiercel.queues.nouns import did_you_mean, kind_of, lazy_kind, refuse_typos, with_article
from tiercel.queues.spout import Spout, takes_reason
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.bolt import ArrowBolt, AsyncBolt, BasicBolt, BatchBolt
from tiercel.spark_jobs.bolts.retry import Retry
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.windowed_bolt import AggregatingBolt, AnyBolt
from tiercel.spark_jobs.errors import ConfigValueError, TopologyError
from tiercel.spark_jobs.topology import grouping as groupings
from tiercel.spark_jobs.topology.bolt_settings import (
    check_batching,
    check_concurrency,
    check_limit,
    check_ordering,
    is_sink,
    kind_name,
    stream_of,
)
from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.graph import BoltSpec, SpoutSpec, Subscription, Topology, upstream
from tiercel.spark_jobs.topology.windowing import check_windows

# The arguments with which the methods of a bolt are called.
_ARGUMENTS = {
    "prepare": ("config", "context"),
    "execute": ("tup", "collector"),
    "execute_batch": ("tuples", "collector"),
    "create": (),
    "add": ("accumulator", "tup"),
    "merge": ("first", "second"),
    "result": ("accumulator", "window", "collector"),
    "flush": ("collector",),
    "cleanup": (),
}
# The same for a spout. ``fail`` may omit the reason.
_SPOUT_ARGUMENTS = {
    "open": ("config", "context"),
    "next_tuple": ("collector",),
    "next_tuples": ("collector", "limit"),
    "expect": ("tuples",),
    "describe": ("msg_id",),
    "ack": ("msg_id",),
    "ack_all": ("msg_ids",),
    "fail": ("msg_id", "reason"),
    "reject": ("msg_id", "reason"),
    "release": ("msg_id",),
    "close": ("grace",),
    **dict.fromkeys(("activate", "check", "in_back_off", "is_full", "deactivate"), ()),
}
# Settings that are read in ``config`` only, and settings that are read in the class only.
_IN_CONFIG = (
    "ordered_by",
    "rate_limit",
    "rate_limit_by",
    "threads",
    "tick_tuple_freq_secs",
    "execute_timeout_secs",
    "max_output_bytes",
)
_IN_CLASS = (
    "once",
    "once_retention",
    "on_error",
    "transient",
    "window",
    "timestamp_field",
    "timestamp_unit",
    "lag",
    "late_stream",
    "idle",
    "max_ahead",
    "keyed",
    "tells_expired",
    "max_held",
    "output_fields",
    "output_streams",
    "direct_streams",
)
# The modules of the base classes, whose methods only say that they are missing.
_BASES = {kind.__module__ for kind in get_args(AnyBolt)}
# A ``Bolt`` may do by hand what ``once`` of a ``StatefulBolt`` does, as ``DatabaseSink`` does.
_WITHOUT_ONCE = (BasicBolt, AsyncBolt, BatchBolt, ArrowBolt)
# A message must not be forgotten while deliveries of it are still in the topology.
_SHORTEST = timedelta(minutes=1)
_LONGEST = timedelta(days=10 * 365)


@dataclass
class _Declared:
    component: Any
    parallelism: int
    overrides: Mapping[str, Any]
    subscriptions: list[Subscription] = field(default_factory=list)

    def settings(self, id_: str) -> dict[str, Any]:
        """Return the fields of ``ComponentSpec``. Raises TopologyError."""
        streams = streams_of(id_, self.component)
        return {
            "parallelism": self.parallelism,
            "overrides": self.overrides,
            "streams": streams,
            "direct": direct_of(id_, self.component, streams),
        }


class BoltDeclarer:
    """Subscribes a bolt to streams; calls chain."""

    def __init__(self, declared: _Declared) -> None:
        self._declared = declared

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each tuple to one task, evenly."""
        return self._subscribe(component, stream, groupings.Shuffle())

    def fields_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send equal values of ``fields`` to one task, across runs and machines."""
        return self._subscribe(component, stream, groupings.Fields(fields))

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each tuple to every task."""
        return self._subscribe(component, stream, groupings.AllTasks())

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each tuple to the task with the lowest id."""
        return self._subscribe(component, stream, groupings.Global())

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """As shuffle."""
        return self._subscribe(component, stream, groupings.NoGrouping())

    def local_or_shuffle_grouping(
        self, component: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """As shuffle, but among the tasks in the emitter's own process if there are any.

        A spout's process has none.
        """
        return self._subscribe(component, stream, groupings.LocalOrShuffle())

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send each tuple to one of two tasks, the same two for equal values of ``fields``."""
        return self._subscribe(component, stream, groupings.PartialKey(fields))

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each tuple to the task that the emitter names, on one of its ``direct_streams``."""
        return self._subscribe(component, stream, groupings.Direct())

    def custom_grouping(
        self, component: str, grouping: groupings.CustomGrouping, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send each tuple to the tasks that ``grouping`` chooses; see ``CustomGrouping``."""
        if isinstance(grouping, type) or not isinstance(grouping, groupings.CustomGrouping):
            raise TopologyError(
                f"{grouping!r:.60} is not a grouping: give an object with prepare and choose_tasks"
            )
        return self._subscribe(component, stream, groupings.Custom(grouping))

    def _subscribe(self, component: str, stream: str, grouping: groupings.Grouping) -> BoltDeclarer:
        if not isinstance(component, str):
            raise TopologyError(
                f"a grouping needs the id of a component, such as 'orders', not {component!r:.60}"
            )
        self._declared.subscriptions.append(
            Subscription(component=component, stream=stream, grouping=grouping)
        )
        return self


class TopologyBuilder:
    """Puts a topology together; ``build`` checks it. Every method raises TopologyError."""

    def __init__(self, name: str, config: Config | None = None) -> None:
        """``name`` is in the keys in Redis: topologies that run at once need different names."""
        if (
            not isinstance(name, str)
            or not name
            or not name.isprintable()
            or any(character in name for character in "{} ")
        ):
            raise TopologyError(
                f"{name!r} is not a valid topology name: use letters, digits, dashes and dots"
            )
        if config is not None and not isinstance(config, Config):
            raise TopologyError(
                f"the config of topology {name!r} is {kind_of(config)}: give a Config, such as "
                "Config(message_timeout_secs=60)"
            )
        self._name, self._config = name, config or Config()
        self._spouts: dict[str, _Declared] = {}
        self._bolts: dict[str, _Declared] = {}

    @refuse_typos
    def set_spout(
        self, id_: str, spout: Spout, parallelism: int = 1, config: Mapping[str, Any] | None = None
    ) -> None:
        """Add a spout; ``parallelism`` is its number of tasks, each in its own process.

        ``config`` overrides the topology's settings for this spout; see ``Config``.
        """
        if not isinstance(spout, Spout):
            raise TopologyError(f"spout {id_!r} is {kind_of(spout)}, not a Spout")
        check_spout_methods(id_, spout)
        self._spouts[id_] = self._declare(id_, spout, parallelism, config)

    @refuse_typos
    def set_bolt(
        self, id_: str, bolt: AnyBolt, parallelism: int = 1, config: Mapping[str, Any] | None = None
    ) -> BoltDeclarer:
        """Add a bolt; ``parallelism`` is its number of tasks. Subscribe it by calling groupings on
        what this returns: ``set_bolt(…).shuffle_grouping("orders")``.

        ``config`` overrides the topology's settings for this bolt; see ``Config``.
        """
        if not isinstance(bolt, AnyBolt):
            raise TopologyError(
                f"bolt {id_!r} is {kind_of(bolt)}, not a Bolt, BasicBolt, AsyncBolt, BatchBolt, "
                "WindowedBolt or ArrowBolt"
            )
        check_methods(id_, bolt)
        _names(id_, bolt, "transient")
        self._bolts[id_] = self._declare(id_, bolt, parallelism, config)
        return BoltDeclarer(self._bolts[id_])

    def build(self) -> Topology:
        """Return the topology; raises TopologyError for the first fault."""
        if not self._spouts:
            raise TopologyError(f"topology {self._name!r} has no spout: add one with set_spout")
        spouts = {
            id_: SpoutSpec(spout=one.component, **one.settings(id_))
            for id_, one in self._spouts.items()
        }
        bolts = {
            id_: BoltSpec(
                bolt=one.component,
                subscriptions=tuple(one.subscriptions),
                **one.settings(id_),
            )
            for id_, one in self._bolts.items()
        }
        topology = Topology(name=self._name, config=self._config, spouts=spouts, bolts=bolts)
        for id_, spec in bolts.items():
            check_bolt(topology, id_, spec)
        for id_, spec in bolts.items():
            check_once(topology, id_, spec)
        for id_ in (*spouts, *bolts):
            check_config(topology, id_)
        return topology

    def _declare(
        self, id_: str, component: object, parallelism: int, config: Mapping[str, Any] | None
    ) -> _Declared:
        if not isinstance(id_, str) or not id_ or "\n" in id_:
            raise TopologyError(f"{id_!r} is not a valid id: use a string")
        if id_.startswith("__"):
            raise TopologyError(f"the id {id_!r} is reserved: do not begin it with two underscores")
        if id_ in self._spouts or id_ in self._bolts:
            raise TopologyError(f"there are two components {id_!r}: give each its own id")
        if type(parallelism) is not int or not 1 <= parallelism < EXTRA:
            raise TopologyError(
                f"{id_!r} has parallelism {parallelism!r}: it must be a number of tasks, at least 1"
                f" and less than {EXTRA:,}"
            )
        overrides = {} if config is None else config
        try:
            Config.check_override(overrides, "spout" if isinstance(component, Spout) else "bolt")
            return _Declared(component, parallelism, dict(overrides))
        except ConfigValueError as error:
            raise TopologyError(f"config of {id_!r}: {error}") from error


def check_bolt(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError for a bolt whose subscriptions or settings do not fit it."""
    check_places(id_, spec)
    check_subscriptions(topology, id_, spec)
    check_needed_fields(topology, id_, spec)
    check_batching(topology, id_, spec)
    check_windows(topology, id_, spec)
    check_ordering(topology, id_, spec)
    check_retry(id_, spec)
    check_limit(topology, id_, spec)
    check_concurrency(id_, spec)


def check_places(id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError for a setting in a place where it is not read: the bolt would run without
    its order, its limit or ``once``.
    """
    bolt, own = spec.bolt, type(spec.bolt)
    for name in _IN_CONFIG:
        # Of a class, because ``__init__`` may keep anything. A ``Bolt`` may have its own threads.
        value = getattr(own, name, None)
        if name == "threads" and not isinstance(bolt, BasicBolt):
            continue
        if isinstance(value, (str, int, float, list, tuple)) and name not in spec.overrides:
            raise TopologyError(
                f"bolt {id_!r}: {name} of class {own.__name__} has no effect: write "
                f'set_bolt(…, config={{"{name}": {value!r:.60}}}), or give your own attribute '
                "another name"
            )
    for name in _IN_CLASS:
        if name in spec.overrides and hasattr(bolt, name):
            place = f"{'as an argument of' if is_sink(bolt) else 'in class'} {own.__name__}"
            raise TopologyError(
                f"config of {id_!r}: {name} has no effect here: write {name} = "
                f"{spec.overrides[name]!r:.60} {place}"
            )


def check_needed_fields(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError if the settings of a built-in sink name a field that a stream lacks."""
    needed = sorted(getattr(spec.bolt, "needed_fields", ()))
    for subscription in spec.subscriptions:
        known = topology.spec(subscription.component).streams[subscription.stream].names
        missing = next((name for name in needed if name not in known), None)
        if missing is not None:
            raise TopologyError(
                f"bolt {id_!r} uses field {missing!r}, which is not on {stream_of(subscription)}; "
                f"its fields are {', '.join(known)}{did_you_mean(missing, known)}"
            )


def check_retry(id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError for a ``retry`` that is no ``Retry``."""
    found = spec.retry
    if found is not None and not isinstance(found, Retry):
        raise TopologyError(
            f"bolt {id_!r}: retry must be a Retry, such as Retry(attempts=5, on=TimeoutError), not "
            f"{found!r:.60}"
        )


def check_once(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError if the bolt has ``once`` set and cannot fulfil it."""
    bolt = spec.bolt
    once = getattr(bolt, "once", False)
    if not isinstance(once, bool):
        raise TopologyError(f"bolt {id_!r}: once must be True or False, not {once!r:.50}")
    if not once:
        return
    if isinstance(bolt, _WITHOUT_ONCE) and not isinstance(bolt, StatefulBolt):
        raise TopologyError(
            f"bolt {id_!r} has once set, which is for a StatefulBolt or a WindowedBolt; this is "
            f"{with_article(kind_name(bolt))}, which would execute each delivery"
        )
    retention = getattr(bolt, "once_retention", _SHORTEST)
    if not isinstance(retention, timedelta) or not _SHORTEST <= retention <= _LONGEST:
        raise TopologyError(
            f"bolt {id_!r}: once_retention must be a timedelta of a minute at least and ten years "
            f"at most, not {retention!r:.50}"
        )
    # Spouts without this attribute may give identities when they emit.
    spouts = sorted(upstream(topology, id_) & topology.spouts.keys())
    named = [getattr(topology.spouts[one].spout, "identity", "its own") for one in spouts]
    if spouts and all(one is None for one in named):
        raise TopologyError(
            f"bolt {id_!r} has once set, and no message has an identity: set one in the spout "
            f'{spouts[0]!r}, such as QueueSpout(…, identity="message_id")'
            + (f", or write {type(bolt).__name__}(…, once=False)" if is_sink(bolt) else "")
        )


def check_methods(id_: str, bolt: AnyBolt) -> None:
    """Raise TopologyError for a method that is misspelt or takes other arguments, and for
    generators and coroutines: calling one runs nothing, and the tuple would be acked.
    """
    work = _work_of(bolt)
    for name in work:
        if getattr(getattr(type(bolt), name), "__module__", "") in _BASES:
            own = {each for kind in type(bolt).__mro__ for each in _own_names(kind)}
            # A ``BatchBolt`` without its method is refused by ``check_batching``.
            typo = did_you_mean(name, sorted(own))
            if typo and not isinstance(bolt, BatchBolt):
                raise TopologyError(f"bolt {id_!r} has no method {name}{typo}")
    for name in ("prepare", *work, "merge", "flush", "cleanup"):
        method = getattr(bolt, name, None)
        if method is not None:
            _check_kind(id_, bolt, method, name)
            _check_arguments(f"bolt {id_!r}: {name}", method, _ARGUMENTS[name])
    # A decorator may return the coroutine of the method in it.
    if isinstance(bolt, AsyncBolt) and not inspect.iscoroutinefunction(
        inspect.unwrap(bolt.execute)
    ):
        raise TopologyError(
            f"bolt {id_!r}: execute of an AsyncBolt must be async: write `async def execute`, or "
            "derive the bolt from BasicBolt"
        )


def check_spout_methods(id_: str, spout: Spout) -> None:
    """Raise TopologyError for a method of a spout that would never run or takes other arguments,
    and for a misspelt ``next_tuple``: the spout would emit nothing, or its source hear of no ack.
    """
    if type(spout).next_tuple is Spout.next_tuple and type(spout).next_tuples is Spout.next_tuples:
        own = {each for kind in type(spout).__mro__ for each in _own_names(kind)}
        if typo := did_you_mean("next_tuple", sorted(own - set(vars(Spout)))):
            raise TopologyError(f"spout {id_!r} has no method next_tuple{typo}")
    for name in (*_SPOUT_ARGUMENTS, "retry_later"):
        method = getattr(spout, name)
        if what := lazy_kind(method):
            raise TopologyError(
                f"spout {id_!r}: {name} is {what} and would never run: write a plain method, and "
                "let a thread of the spout do the waiting"
            )
        if name in _SPOUT_ARGUMENTS:
            short = name == "fail" and not takes_reason(spout)
            wanted = _SPOUT_ARGUMENTS[name][: 1 if short else None]
            _check_arguments(f"spout {id_!r}: {name}", method, wanted)


def _work_of(bolt: AnyBolt) -> tuple[str, ...]:
    """Return the names of the methods that a bolt of this kind must have."""
    if isinstance(bolt, AggregatingBolt):
        return ("create", "add", "result")
    return ("execute_batch",) if isinstance(bolt, BatchBolt) else ("execute",)


def _own_names(kind: type) -> Iterable[str]:
    return () if kind.__module__ in _BASES else (each for each in vars(kind) if each[0] != "_")


def _check_kind(id_: str, bolt: AnyBolt, method: Callable[..., object], name: str) -> None:
    what = lazy_kind(method)
    if what and not (isinstance(bolt, AsyncBolt) and what == "async"):
        raise TopologyError(
            f"bolt {id_!r}: {name} is {what} and would never run: write "
            + ("an async" if isinstance(bolt, AsyncBolt) else "a plain")
            + " method, "
            + ("or derive the bolt from AsyncBolt" if what == "async" else "with emit, not yield")
        )


def _check_arguments(subject: str, method: Callable[..., object], wanted: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(method)
    except ValueError:  # of a function that is not Python's
        return
    try:
        signature.bind(*wanted)
    except TypeError:
        raise TopologyError(
            f"{subject} is called with ({', '.join(wanted)}), and takes {signature}"
        ) from None


def streams_of(id_: str, component: Any) -> dict[str, Schema]:
    given = component.output_streams
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TopologyError(
            f"output_streams of {id_!r} must map names of streams to Spark DDL, such as "
            f'{{"large": "order string"}}, and is {given!r:.60}'
        )
    declared = dict(given)
    if component.output_fields:
        if DEFAULT_STREAM in declared:
            raise TopologyError(
                f"{id_!r} declares its default stream twice: in output_fields and in output_streams"
            )
        declared[DEFAULT_STREAM] = component.output_fields
    streams = {}
    for stream, ddl in declared.items():
        try:
            streams[stream] = Schema.parse(ddl)
        except SchemaError as error:
            raise TopologyError(f"stream {stream!r} of {id_!r}: {error}") from error
    return streams


def direct_of(id_: str, component: Any, streams: Mapping[str, Schema]) -> frozenset[str]:
    direct = frozenset(_names(id_, component, "direct_streams"))
    unknown = direct - streams.keys()
    if unknown:
        raise TopologyError(
            f"direct stream {min(unknown)!r} of {id_!r} has no fields: declare it in output_streams"
        )
    return direct


def _names(id_: str, component: Any, attribute: str) -> AbstractSet[str]:
    """Return the names in a set that a component declares; raises TopologyError for another type:
    a text would count as the set of its letters.
    """
    given: object = getattr(component, attribute, frozenset())
    if not isinstance(given, AbstractSet) or not all(isinstance(name, str) for name in given):
        raise TopologyError(
            f'{attribute} of {id_!r} must be a set of names, such as {{"name"}}, and is '
            f"{given!r:.60}"
        )
    return given


def check_subscriptions(topology: Topology, id_: str, spec: BoltSpec) -> None:
    if not spec.subscriptions:
        raise TopologyError(
            f"bolt {id_!r} receives nothing: subscribe it, such as .shuffle_grouping(COMPONENT)"
        )
    seen = set()
    for subscription in spec.subscriptions:
        _check_subscription(topology, id_, subscription)
        # A tuple sent to one task twice would have one edge id, which would cancel out.
        source = subscription.component, subscription.stream
        if source in seen:
            raise TopologyError(
                f"bolt {id_!r} subscribes twice to stream {source[1]!r} of {source[0]!r}: "
                "keep one of the two"
            )
        seen.add(source)


def _check_subscription(topology: Topology, id_: str, subscription: Subscription) -> None:
    component = subscription.component
    stream = subscription.stream
    grouping = subscription.grouping
    try:
        source = topology.spec(component)
    except KeyError:
        known = ", ".join((*topology.spouts, *topology.bolts))
        raise TopologyError(
            f"bolt {id_!r} subscribes to {component!r}, which is not in the topology; there are "
            f"{known}"
        ) from None
    if stream not in source.streams:
        known = ", ".join(source.streams) or "none: set output_fields"
        raise TopologyError(
            f"bolt {id_!r} subscribes to stream {stream!r} of {component!r}; its streams "
            f"are {known}"
        )
    if isinstance(grouping, groupings.Direct) != (stream in source.direct):
        what = (
            "which is direct: use direct_grouping"
            if stream in source.direct
            else "which is not direct: name it in direct_streams, or use another grouping"
        )
        raise TopologyError(
            f"bolt {id_!r} subscribes by {grouping.name} grouping to stream {stream!r} of "
            f"{component!r}, {what}"
        )
    try:
        grouping.validate(source.streams[stream])
    except TopologyError as error:
        raise TopologyError(f"bolt {id_!r}, grouping of {component!r}: {error}") from error


def check_config(topology: Topology, id_: str) -> None:
    try:
        topology.config_of(id_)
    except ConfigValueError as error:
        raise TopologyError(f"config of {id_!r}: {error}") from error
