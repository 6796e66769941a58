"""A whole topology in one thread, on simulated time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self, get_args

from tiercel.queues.errors import BadPropertyError, SchemaError
from tiercel.queues.nouns import counted, kind_of
from tiercel.queues.spout import MsgId, Spout
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import FromField
from tiercel.spark_jobs.bolts.windowed_bolt import WindowedBolt
from tiercel.spark_jobs.state.encoding import Key, decode_key, decode_value
from tiercel.spark_jobs.topology.bolt_settings import stateful_bolts
from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.graph import Topology, check_has_bolts
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Holder, Lease
from tiercel.workers.testing.engine import (
    Engine,
    LocalClusterError,
    Seen,
    SimulatedClock,
    SimulatedDate,
    Ticks,
    watched,
)
from tiercel.workers.testing.memory_engine import MemoryEngine
from tiercel.workers.testing.spouts import SpoutTasks, Surroundings
from tiercel.workers.testing.stand_ins import (
    PUBLISHED,
    BodyFeeder,
    PublishedMessage,
    RefusedBody,
    feeder_for,
    places_of,
    published_message,
    with_database,
    with_spouts,
    without_broker,
    without_database,
    written_rows,
)

EngineName = Literal["memory", "spark"]

_ROUNDS = 1_000
# A fixed time, so that each run of a test is the same.
_START = datetime(2026, 1, 1, tzinfo=UTC)
# Distance between two roots, which ascend in the order of emission. Their high bits differ too, as
# in real roots, so that they spread over the shards of a ledger.
_ROOT_STEP = 1 << 36


class LocalCluster:
    """Runs a topology in a test: ``with LocalCluster(topology) as cluster: …``.

    Components, groupings, trees and timeouts work as in a cluster. ``engine="memory"`` needs no
    broker, Redis or JVM, and is deterministic. ``engine="spark"`` runs the bolts in Spark, on
    Redis, as a real cluster does; Spark starts once per process. Time stands still except in
    ``advance_time``: in memory, an ``AsyncBolt`` sleeps in simulated time, and a sleep in its
    ``prepare`` or ``flush`` moves the time. Spouts run in the thread of the test; the kit does not
    wait for threads that spouts start. Entering opens the spouts; leaving closes them and cleans up
    the bolts, even after an error.

    Outcomes of one round arrive in the order in which the tuples were emitted. A real cluster does
    not guarantee this order.
    """

    # Number of rounds in which bolts did more than report waiting tuples.
    _works = 0

    def __init__(  # noqa: PLR0913 - what a test may choose
        self,
        topology: Topology,
        config: Config | None = None,
        *,
        engine: EngineName = "memory",
        slots: int = 2,
        redis_url: str | None = None,
        starts_at: datetime | None = None,
    ) -> None:
        """``config`` replaces the topology's; ``slots`` Spark tasks share the bolt tasks.

        ``starts_at`` is the time, with an offset, at which ``context.now()`` begins: by default
        2026-01-01 in UTC. On Spark, components see real time.

        ``redis_url`` is for Spark: a server to use instead of a private one; the cluster's keys are
        removed from it afterwards. Raises LocalClusterError for an unknown engine and wrong
        ``slots`` or ``starts_at``, TopologyError for a topology without a bolt.
        """
        _check_given(topology, config, engine, slots, redis_url)
        check_has_bolts(topology)
        self._topology = topology if config is None else replace(topology, config=config)
        named = config.extra if config is not None else {}
        self._seen = Seen()
        # The topology that runs, with stand-ins and the capturing bolt.
        self._clock = SimulatedClock()
        self._date = _date_of(self._clock, engine, starts_at)
        self._watched = watched(_for_tests(self._topology, named), self._seen, self._date)
        self._engine_name = engine
        self._redis_url = redis_url
        self._slots = slots
        self._ticks = Ticks(self._watched)
        self._control = _Orders()
        self._spouts = SpoutTasks(self._watched)
        self._engine: Engine | None = None
        self._running: ExitStack | None = None
        # Results that can be read after the engine is closed.
        self._last_states: dict[str, dict[Key, Any]] = {}
        self._last_tracebacks: list[str] = []

    def __enter__(self) -> Self:
        if self._running is not None:
            raise LocalClusterError("this cluster was used before: make a new one for each test")
        self._running = ExitStack()
        try:
            self._start(self._running)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the cluster, as leaving the ``with`` block does.

        Results can be read afterwards. Idempotent. Raises the errors of spouts.
        """
        self._engine = None
        if self._running is not None:
            self._running.close()

    # -- feeding -----------------------------------------------------------------------------------

    def feed_body(
        self,
        body: bytes | str,
        spout: str | None = None,
        properties: Mapping[str, Any] = MappingProxyType({}),
        identity: str | None = None,
    ) -> int:
        """Feed a body to a ``QueueSpout``, whose decoder reads it at the next ``run_until_idle``.

        Without ``spout``, the topology must have exactly one. Returns the message id, counted from
        1 per spout. Only messages postponed by a bolt (``RetryLater``) are redelivered. A str is
        encoded in UTF-8. ``properties`` maps the spout's properties to values; missing ones are
        null. ``identity`` is the message id, or the header, that ``QueueSpout(identity=…)`` names.
        Raises LocalClusterError for an unknown spout or property, and for an identity that the
        spout does not read.
        """
        raw = body.encode() if isinstance(body, str) else body
        if not isinstance(raw, bytes):
            raise LocalClusterError(
                f"the body is {kind_of(body)}: give bytes or a str, such as json.dumps(…) returns"
            )
        try:
            return self._feeder(spout).feed_body(raw, properties, identity)
        except (BadPropertyError, SchemaError) as error:
            raise LocalClusterError(str(error)) from error

    # -- running -----------------------------------------------------------------------------------

    def run_until_idle(self, max_rounds: int | None = None) -> None:
        """Run until no spout emits a tuple or gets an outcome any more; trees may be pending.

        Incomplete batches are executed when nothing else moves, without any time passing. Raises
        LocalClusterError if something still moves after ``max_rounds``, and the errors of spouts.
        ``max_rounds`` is by default 1,000, and one for each fed tuple that waits to be emitted.
        """
        if max_rounds is None:
            max_rounds = _ROUNDS + self._spouts.left
        for _ in range(max_rounds):
            if not self.step():
                return
        raise LocalClusterError(
            f"the topology still moves after {max_rounds} rounds: a spout never runs dry, or "
            "replays messages that always fail; use step() to run one round at a time"
        )

    def step(self) -> bool:
        """Run at most one round: emit tuples of the spouts, and process them.

        Returns False if nothing moved. Use it for spouts that never run dry.
        """
        engine = self._running_engine()
        ticked = self._ticks.send(engine, self._clock())
        moved, sent = self._spouts.turn()
        wakes_at = engine.next_at
        due = wakes_at is not None and wakes_at <= self._clock()
        if ticked or sent or due:
            self._works += engine.work()
        return ticked or moved or due

    def advance_time(self, seconds: float | timedelta) -> None:
        """Let time pass while the cluster runs: message timeouts and ticks come at their times.

        A replayed tuple has a new timeout from its emission. Runs until idle at the beginning and
        at the end. Raises as ``run_until_idle`` does, and ValueError for a negative or infinite
        time.
        """
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"seconds must be a number, 0 or more, not {seconds!r}")
        self.run_until_idle()
        end = self._clock.after(seconds)
        while (moment := self._next_moment()) is not None and round(moment, 9) <= end:
            self._clock.move_to(moment)
            self.run_until_idle()
        self._clock.move_to(end)
        self.run_until_idle()

    def run_to_the_end(self) -> None:
        """Let time pass until no tuple waits for a rate limit, a retry, an order, the end of a
        sleep, its replay, or the message timeout.

        Windows that are open stay open. Raises LocalClusterError if bolts work at 1,000 moments in
        a row and end no message, and as ``run_until_idle`` does.
        """
        self.run_until_idle()
        quiet, outcomes = 0, self._spouts.outcomes
        while (moment := self._next_moment(ticks=False)) is not None:
            works = self._works
            self.advance_time(moment - self._clock())
            quiet = quiet + (self._works > works) if outcomes == self._spouts.outcomes else 0
            outcomes = self._spouts.outcomes
            if quiet >= _ROUNDS:
                raise LocalClusterError(
                    f"no message ended although tuples were executed at {_ROUNDS} times: a bolt "
                    "postpones or retries them for ever; use advance_time to run for a given time"
                )

    def now(self) -> datetime:
        """Return the time that components see, in UTC."""
        return datetime.now(UTC) if self._date is None else self._date()

    def deactivate(self) -> None:
        """Stop asking spouts for tuples; they still get the outcomes of tuples in flight.

        Idempotent.
        """
        self._order(State.DEACTIVATED)

    def activate(self) -> None:
        """Undo ``deactivate``. Idempotent."""
        self._order(State.ACTIVE)

    # -- results -----------------------------------------------------------------------------------

    def acked(self, component: str) -> list[MsgId]:
        """Return the message ids of this spout that were acked, in order."""
        return [one.msg_id for one in self._spouts.told(component) if one.reason is None]

    def failed(self, component: str) -> list[MsgId]:
        """Return the message ids of this spout that failed, timed out or were rejected, in order.

        A replayed message may appear several times. A message that a bolt postponed with
        ``blame=False`` does not appear.
        """
        return [one.msg_id for one in self._spouts.told(component) if one.is_failure]

    def fail_reasons(self, component: str) -> list[str]:
        """Return the reasons of the failures in ``failed``: ``timeout``, or ``bolt[task]:
        ValueError: …``.
        """
        told = self._spouts.told(component)
        return [one.reason for one in told if one.is_failure and one.reason is not None]

    def pending(self, component: str) -> int:
        """Return the number of trees of this spout in flight."""
        return self._spouts.in_flight(component)

    def read_tuples(self, component: str, stream: str = DEFAULT_STREAM) -> list[list[Any]]:
        """Return the tuples that a component has emitted on a stream, each once.

        Values have the types of the stream's fields, as receivers see them. Raises
        LocalClusterError for an unknown component or stream.
        """
        components = (*self._topology.spouts, *self._topology.bolts)
        if component not in components:
            raise LocalClusterError(
                f"there is no component {component!r}; there are {', '.join(components)}"
            )
        streams = self._topology.spec(component).streams
        if stream not in streams:
            known = ", ".join(streams) or "none"
            raise LocalClusterError(
                f"{component!r} has no stream {stream!r}; its streams are {known}"
            )
        return self._seen.of(component, stream)

    def dead_letters(self, spout: str | None = None) -> list[RefusedBody]:
        """Return the bodies that a ``QueueSpout`` has dead-lettered.

        These are undecodable bodies, and bodies that a bolt rejected or postponed too often.
        ``spout`` is as in ``feed_body``, and so are the errors.
        """
        return list(self._feeder(spout).refused)

    def rejected(self, component: str) -> list[MsgId]:
        """Return the message ids of this spout that a bolt rejected, in order; ``failed`` has them
        too.
        """
        return [one.msg_id for one in self._spouts.told(component) if one.rejected]

    def retried_later(self, component: str) -> list[tuple[MsgId, float]]:
        """Return the message ids that a bolt postponed (``RetryLater``), with the seconds, in
        order.
        """
        told = self._spouts.told(component)
        return [(one.msg_id, one.later_s) for one in told if one.later_s is not None]

    def published(
        self, queue: str | None = None, *, exchange: str | None = None
    ) -> list[PublishedMessage]:
        """Return the messages that ``QueueSink`` bolts have published to a queue or an exchange.

        Messages of one task are in order. Raises LocalClusterError if no sink publishes there.
        """
        if (queue is None) is (exchange is None):
            raise LocalClusterError("name a queue, or exchange=")
        wanted = 0 if exchange is None else 1
        known = [place[wanted] for place in places_of(self._topology) if place[wanted] is not None]
        name = queue if exchange is None else exchange
        if name not in known and not any(isinstance(one, FromField) for one in known):
            there = ", ".join(map(str, known)) or "none"
            kinds = "exchanges" if wanted else "queues"
            raise LocalClusterError(f"no QueueSink publishes to {name!r}; the {kinds} are {there}")
        sent = [
            published_message(values)
            for component in self._topology.bolts
            for values in self._seen.of(component, PUBLISHED)
        ]
        if exchange is not None:
            return [one for one in sent if one.exchange == exchange]
        return [one for one in sent if not one.exchange and one.routing_key == queue]

    def written(self, table: str) -> list[dict[str, Any]]:
        """Return the rows that ``DatabaseSink`` bolts have written into a table, as dictionaries.

        A row whose key was written before is left out. Rows of one task are in order. Raises
        LocalClusterError if no sink writes into the table.
        """
        return written_rows(self._topology, self._seen, table)

    def state(self, component: str) -> dict[Key, Any]:
        """Return the state of a ``StatefulBolt``, over all its tasks.

        Raises LocalClusterError if there is no such bolt.
        """
        spec = self._topology.bolts.get(component)
        if spec is None or not isinstance(spec.bolt, StatefulBolt):
            raise LocalClusterError(f"there is no stateful bolt {component!r}")
        if component in self._last_states:
            return dict(self._last_states[component])
        return _state_of(self._running_engine(), component)

    def tracebacks(self) -> list[str]:
        """Return the first traceback of each error that bolts raised, the newest error first.

        An error is one exception at one line of one bolt.
        """
        if self._engine is None:
            return list(self._last_tracebacks)
        return [known.first.text for known in self._engine.tracebacks()]

    def spout(self, component: str, task_index: int = 0) -> Spout:
        """Return the running spout: the ``FeederSpout`` itself, or a copy of another spout."""
        spouts = self._spouts.spouts_of(component)
        self._running_engine()
        return spouts[task_index]

    # -- the inside --------------------------------------------------------------------------------

    def _start(self, running: ExitStack) -> None:
        engine = self._engine = self._new_engine()
        running.callback(engine.close)
        engine.start()
        running.callback(self._keep_seen, engine)
        # The clock stands still: neither the lease nor an order lapses.
        lease = _LastingLease(Holder(driver="local-cluster", run=engine.run_id))
        shared = Surroundings(
            topology=self._watched, engine=engine, clock=self._clock, control=self._control,
            lease=lease, roots=itertools.count(_ROOT_STEP, _ROOT_STEP),
        )  # fmt: skip
        self._spouts.open(shared, running)

    def _feeder(self, spout: str | None) -> BodyFeeder:
        feeders = {
            component: spec.spout
            for component, spec in self._watched.spouts.items()
            if isinstance(spec.spout, BodyFeeder)
        }
        there = ", ".join(feeders) or "none"
        if spout is None and len(feeders) != 1:
            raise LocalClusterError(f"name the QueueSpout to use; there are {there}")
        found = next(iter(feeders)) if spout is None else spout
        if found not in feeders:
            raise LocalClusterError(f"there is no QueueSpout {spout!r}; there are {there}")
        return feeders[found]

    def _keep_seen(self, engine: Engine) -> None:
        """Keep the results that a test can read after the engine is closed."""
        self._last_tracebacks = [known.first.text for known in engine.metrics.traces()]
        for component in stateful_bolts(self._topology):
            self._last_states[component] = _state_of(engine, component)

    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise LocalClusterError(
                "the cluster does not run: use it as `with LocalCluster(topology) as cluster:`"
            )
        return self._engine

    def _order(self, state: State) -> None:
        self._running_engine()
        self._control.order(state)
        self._spouts.obey()

    def _new_engine(self) -> Engine:
        if self._engine_name == "memory":
            return MemoryEngine(self._watched, self._clock, self.now)
        from tiercel.workers.testing.spark_engine import SparkEngine  # noqa: PLC0415 - PySpark takes a second, and may be missing

        return SparkEngine(self._watched, self._slots, self._redis_url)

    def _next_moment(self, *, ticks: bool = True) -> float | None:
        """Return the time of the next event that needs no input; None if there is none."""
        now = self._clock()
        engine = self._running_engine()
        moments = (self._spouts.next_at, self._ticks.next_at if ticks else None, engine.next_at)
        # An unused moment in the past, such as a deactivated spout's, moves nothing.
        return min((each for each in moments if each is not None and each > now), default=None)


class StartCluster(Protocol):
    """The type of the fixture ``local_cluster``."""

    def __call__(
        self, topology: Topology, config: Config | None = None, **options: Any
    ) -> LocalCluster:
        """Return a running cluster; takes and raises the same as ``LocalCluster``."""


class _Orders:
    """The orders of the test to the spout tasks."""

    def __init__(self) -> None:
        self._state: State | None = None

    def order(self, state: State) -> None:
        self._state = state

    def ask(self, known: State) -> State | None:
        found = self._state
        self._state = found or known
        return found

    def note_silent(self, spout: str) -> None:
        """Do nothing: in the kit, the test lets time pass."""

    def paused(self) -> frozenset[str]:
        return frozenset()

    def close(self) -> None:
        """Do nothing: there is no connection."""


class _LastingLease(Lease):
    """The lease of a driver that keeps it."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def holder(self) -> Holder:
        return self._holder


def _check_given(
    topology: object, config: object, engine: str, slots: object, redis_url: str | None
) -> None:
    """Raise LocalClusterError for arguments of the wrong kind, or that do not go together."""
    if not isinstance(topology, Topology):
        raise LocalClusterError(
            f"the topology is {kind_of(topology)}: give what TopologyBuilder.build() returns"
        )
    if config is not None and not isinstance(config, Config):
        raise LocalClusterError(f"the config is {kind_of(config)}: give a Config")
    if engine not in get_args(EngineName):
        raise LocalClusterError(
            f"there is no engine {engine!r}; there are {', '.join(get_args(EngineName))}"
        )
    if type(slots) is not int or slots < 1:
        raise LocalClusterError(f"slots is a number of Spark tasks, 1 or more, not {slots!r}")
    if redis_url and engine == "memory":
        raise LocalClusterError('a redis_url is for engine="spark"; engine="memory" has no server')


def _date_of(
    clock: SimulatedClock, engine: str, starts_at: datetime | None
) -> SimulatedDate | None:
    """Return the time that components see; None: real time."""
    if engine != "memory":
        if starts_at is not None:
            raise LocalClusterError('starts_at is for engine="memory"; on Spark time is real')
        return None
    start = _START if starts_at is None else starts_at
    if not isinstance(start, datetime) or start.tzinfo is None:
        raise LocalClusterError(
            f"starts_at must be a datetime with an offset, such as "
            f"datetime(2026, 1, 1, tzinfo=UTC), not {start!r:.60}"
        )
    return SimulatedDate(clock, start.astimezone(UTC))


def _state_of(engine: Engine, component: str) -> dict[Key, Any]:
    return {decode_key(field): decode_value(raw) for field, raw in engine.state.entries(component)}


def _for_tests(topology: Topology, named: Mapping[str, Any]) -> Topology:
    """Return the topology without its broker and database, unless the test's config names them."""
    runs = topology if named.get("amqp_url") else without_broker(topology)
    database = named.get("database_url")
    return with_database(runs, database) if database else without_database(runs)


def complete_topology(  # noqa: PLR0913 - the settings of the cluster, each by its name
    topology: Topology,
    mock_sources: Mapping[str, Sequence[Sequence[Any]]],
    *,
    config: Config | None = None,
    allow_failures: bool = False,
    engine: EngineName = "memory",
    redis_url: str | None = None,
) -> dict[str, list[list[Any]]]:
    """Feed tuples to spouts, run to the end, and return the tuples that each component emitted.

    Only default streams count; for others use ``LocalCluster.read_tuples``. Feeders replace the
    spouts in ``mock_sources``; other spouts run as they are, and must run dry. Time passes until
    no tuple waits for a rate limit, a retry or a replay; trees still in flight then run into their
    message timeout. Windows that are open at the end stay open. A tuple that fails is not fed
    again: LocalClusterError is raised with the first reason, or if tuples are in flight without a
    timeout; with ``allow_failures`` the other tuples are returned. Also raises as
    ``LocalCluster.run_until_idle`` does.
    """
    fed = _with_fed_spouts(topology, mock_sources)
    with LocalCluster(fed, config, engine=engine, redis_url=redis_url) as cluster:
        settings = config or topology.config
        windowed = any(isinstance(spec.bolt, WindowedBolt) for spec in topology.bolts.values())
        if not windowed:
            cluster.run_to_the_end()
        else:
            # Reports about open windows would never end.
            cluster.run_until_idle()
            if settings.enable_message_timeouts:
                cluster.advance_time(settings.message_timeout_secs)
        if not allow_failures:
            _refuse_failures(cluster, topology, pending=not windowed)
        return {
            component: cluster.read_tuples(component)
            for component in (*topology.spouts, *topology.bolts)
            if DEFAULT_STREAM in topology.spec(component).streams
        }


def _refuse_failures(cluster: LocalCluster, topology: Topology, *, pending: bool) -> None:
    """Raise LocalClusterError for tuples that failed or, with ``pending``, are still in flight."""
    for component in topology.spouts:
        if found := cluster.fail_reasons(component):
            raise LocalClusterError(
                f"{counted(len(found), 'tuple')} of {component!r} failed, the first one with: "
                f"{found[0]}" + "".join(f"\n\n{text}" for text in cluster.tracebacks())
            )
        if pending and (count := cluster.pending(component)):
            raise LocalClusterError(
                f"{counted(count, 'tuple')} of {component!r} in flight without a timeout: a bolt "
                "neither acks nor fails its input"
            )


def _with_fed_spouts(
    topology: Topology, mock_sources: Mapping[str, Sequence[Sequence[Any]]]
) -> Topology:
    feeders = {component: feeder_for(topology, component) for component in mock_sources}
    for component, rows in mock_sources.items():
        for msg_id, values in enumerate(rows):
            feeders[component].feed(values, msg_id)
    return with_spouts(topology, feeders)
