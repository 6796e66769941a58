"""A whole topology in one thread, on simulated time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self, get_args

from tiercel.queues.spout import MsgId, Spout
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.placement import check_has_bolts
from tiercel.workers.control.contract import MemoryControl, State
from tiercel.workers.control.lease import Holder, Lease
from tiercel.workers.control.memory_presence import MemoryPresences
from tiercel.workers.testing.capture import watched
from tiercel.workers.testing.clock import SimulatedClock
from tiercel.workers.testing.database_stand_in import with_database, without_database
from tiercel.workers.testing.engine import Engine
from tiercel.workers.testing.errors import LocalClusterError
from tiercel.workers.testing.looking import Looking
from tiercel.workers.testing.memory_engine import MemoryEngine
from tiercel.workers.testing.spout_tasks import SpoutTasks
from tiercel.workers.testing.spouts import Surroundings
from tiercel.workers.testing.stand_ins import without_broker
from tiercel.workers.testing.ticks import Ticks

EngineName = Literal["memory", "spark"]

_ROUNDS = 1_000
# Between two roots. They ascend, as the tuples are emitted; their high bits differ now and then, as
# those of real ones do, so that they spread over the shards of a ledger.
_ROOT_STEP = 1 << 36


class LocalCluster(Looking):
    """Runs a topology, for tests: ``with LocalCluster(topology) as cluster: …``.

    Components, groupings, trees and timeouts are those of the real thing. ``engine="memory"`` has
    no broker, no Redis and no JVM, and the same test gives the same run. ``engine="spark"`` runs
    the bolts in Spark, on Redis, as a real cluster does; Spark starts once per process. Time stands
    still except in ``advance_time``: in memory an ``AsyncBolt`` sleeps in simulated time, and a
    sleep in its ``prepare`` or ``flush`` moves the time. Spouts run in the thread of the test; the
    kit does not wait for threads of theirs. Entering opens spouts; leaving closes them and cleans
    the bolts up, even after an error.

    Order: outcomes of one round come in the order in which the tuples were emitted. A real cluster
    does not promise it.
    """

    def __init__(
        self,
        topology: Topology,
        config: Config | None = None,
        *,
        engine: EngineName = "memory",
        slots: int = 2,
        redis_url: str | None = None,
    ) -> None:
        """``config`` takes the place of the topology's; ``slots`` is how many Spark tasks
        share the bolt tasks.

        ``redis_url`` is for Spark: a server to use instead of a private one, on which nothing is
        left behind. Raises LocalClusterError for an unknown engine, TopologyError for a topology
        without a bolt.
        """
        if engine not in get_args(EngineName):
            raise LocalClusterError(
                f"there is no engine {engine!r}; there are {', '.join(get_args(EngineName))}"
            )
        if redis_url and engine == "memory":
            raise LocalClusterError(
                'a redis_url is for engine="spark"; engine="memory" has no server'
            )
        check_has_bolts(topology)
        super().__init__(topology if config is None else replace(topology, config=config))
        named = config.extra if config is not None else {}
        self._watched = watched(_for_tests(self._topology, named), self._seen)
        self._engine_name = engine
        self._redis_url = redis_url
        self._slots = slots
        self._clock = SimulatedClock()
        self._ticks = Ticks(self._watched)
        self._control = MemoryControl(lambda: 0.0)
        self._spouts = SpoutTasks(self._watched)
        self._running: ExitStack | None = None

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the cluster, as leaving the ``with`` block does.

        What was seen can still be looked at. Idempotent. Raises what spouts raise.
        """
        self._engine = None
        if self._running is not None:
            self._running.close()

    # -- running -----------------------------------------------------------------------------------

    def run_until_idle(self, max_rounds: int = _ROUNDS) -> None:
        """Run until nothing moves: no spout has anything to emit or hear; trees may be pending.

        Batches that are not full are executed when nothing else moves: no time has to pass.

        Raises LocalClusterError if something still moves after ``max_rounds``, and
        what a spout raises.
        """
        for _ in range(max_rounds):
            if not self.step():
                return
        raise LocalClusterError(
            f"the topology still moves after {max_rounds} rounds: a spout that never runs "
            "dry, or one that replays what always fails; use step() to run one round at a time"
        )

    def step(self) -> bool:
        """Run at most one round: emit what the spouts have, and process it. Return False if nothing
        moved.

        For spouts that never run dry.
        """
        engine = self._running_engine()
        ticked = self._ticks.send(engine, self._clock())
        moved, sent = self._spouts.turn()
        wakes_at = engine.next_at
        due = wakes_at is not None and wakes_at <= self._clock()
        if ticked or sent or due:
            engine.work()
        return ticked or moved or due

    def advance_time(self, seconds: float) -> None:
        """Let time pass, as if the cluster ran all the while: each message timeout and each tick
        comes at its moment, and what a spout replays then begins a timeout of its own there.

        Runs until idle first and last.

        Raises as ``run_until_idle`` does, and ValueError for a time that is not a positive number
        or 0.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"time goes on by a number of seconds, not {seconds!r}")
        self.run_until_idle()
        end = self._clock.after(seconds)
        while (moment := self._next_moment()) is not None and round(moment, 9) <= end:
            self._clock.move_to(moment)
            self.run_until_idle()
        self._clock.move_to(end)
        self.run_until_idle()

    def deactivate(self) -> None:
        """No spout is asked for tuples any more. They still hear of those in flight. Idempotent."""
        self._order(State.DEACTIVATED)

    def activate(self) -> None:
        """Undo ``deactivate``. Idempotent."""
        self._order(State.ACTIVE)

    # -- looking -----------------------------------------------------------------------------------

    def acked(self, component: str) -> list[MsgId]:
        """Message ids for which ``ack`` was called on this spout, in order."""
        return [one.msg_id for one in self._spouts.told(component) if one.reason is None]

    def failed(self, component: str) -> list[MsgId]:
        """Message ids that failed, timed out or were rejected, in the order in which this spout
        heard of them.

        One that the spout replays may be here several times. One that a bolt wants later with
        ``blame=False`` is not here.
        """
        return [one.msg_id for one in self._spouts.told(component) if one.is_failure]

    def fail_reasons(self, component: str) -> list[str]:
        """The reason for each of ``failed``: ``timeout``, or ``bolt[task]: ValueError: …``."""
        told = self._spouts.told(component)
        return [one.reason for one in told if one.is_failure and one.reason is not None]

    def pending(self, component: str) -> int:
        """Number of this spout's tuples whose trees are in flight."""
        return self._spouts.in_flight(component)

    def read_tuples(self, component: str, stream: str = DEFAULT_STREAM) -> list[list[Any]]:
        """Return what a component emitted on a stream so far, each tuple once for all receivers.

        The values are those that a receiver sees, typed by the stream's fields. Raises
        LocalClusterError for a component or a stream that there is not.
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

    def spout(self, component: str, task_index: int = 0) -> Spout:
        """The spout object that runs: a ``FeederSpout`` itself, else a copy of the topology's."""
        spouts = self._spouts.spouts_of(component)
        self._running_engine()
        return spouts[task_index]

    # -- the inside --------------------------------------------------------------------------------

    def _start(self, running: ExitStack) -> None:
        engine = self._engine = self._new_engine()
        running.callback(engine.close)
        engine.start()
        running.callback(self._keep_seen, engine)
        # Nothing of what a driver and an operator say lapses here.
        lease = Lease(MemoryPresences(lambda: 0.0))
        lease.take(Holder(driver="local-cluster", run=engine.run_id))
        shared = Surroundings(
            topology=self._watched, engine=engine, clock=self._clock, control=self._control,
            lease=lease, roots=itertools.count(_ROOT_STEP, _ROOT_STEP),
        )  # fmt: skip
        self._spouts.open(shared, running)

    def _order(self, state: State) -> None:
        self._running_engine()
        self._control.order(state)
        self._spouts.obey()

    def _new_engine(self) -> Engine:
        if self._engine_name == "memory":
            return MemoryEngine(self._watched, self._clock)
        from tiercel.workers.testing.spark_engine import SparkEngine  # noqa: PLC0415 - PySpark takes a second, and may be missing

        return SparkEngine(self._watched, self._slots, self._redis_url)

    def _next_moment(self) -> float | None:
        """Return the next time at which something happens by itself."""
        now = self._clock()
        engine = self._running_engine()
        moments = (self._spouts.next_at, self._ticks.next_at, engine.next_at)
        # One that has come and could not be used, as by a spout that is deactivated, moves nothing.
        return min((each for each in moments if each is not None and each > now), default=None)


def _for_tests(topology: Topology, named: Mapping[str, Any]) -> Topology:
    """Return the topology without its servers: a test that names a broker or a database means it,
    those that the topology names are not for tests.
    """
    runs = topology if named.get("amqp_url") else without_broker(topology)
    database = named.get("database_url")
    return with_database(runs, database) if database else without_database(runs)
