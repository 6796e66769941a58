"""``tiercel activate``, ``deactivate``, ``pause``, ``resume``, ``rebalance`` and ``kill``: gives
the order, waits until it is obeyed, reports the result, and logs each action of an operator.
"""

from __future__ import annotations

import logging
import os
import pwd
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime

from tiercel.queues.nouns import counted, did_you_mean
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.contract import KILL_LASTS, NO_REBALANCE, Change, State
from tiercel.workers.control.presence import Holder, Keeper, Lease, Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import TopologyNote, topology_named
from tiercel.workers.errors import UsageError

log = logging.getLogger(__name__)
_LOOK_S = 0.25
_SAY_S = 1.0
_ANSWER_S = 5.0
_BEGIN_S = 30.0
_PAUSED = (
    "its tasks finish their current tuples and take nothing new; tuples wait for it and do not "
    "time out"
)
_NOT_BEGUN = "not begun a new run yet: the log of its driver says why"
_NOT_WANTED = (
    "begun a new run, but without these numbers of tasks: its driver has other code, or an older "
    "tiercel; start it again"
)
# Spout workers read orders once per second. Workers in reserve do too, but have no presence, so the
# order to end stands for at least this long.
_STANDS_S = 2.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A topology in ``tiercel list``."""

    name: str
    # The last order; a topology that does not run obeys it when it starts.
    ordered: State
    driver: bool
    # None: no driver runs, or its place is not reported.
    driver_at: Whereabouts | None
    # Number of its spout tasks, and of spout tasks with a worker.
    spout_tasks: int
    spouts: int
    # Number of messages.
    in_flight: int
    # Beginning of the newest run; None: there was none.
    last_run: datetime | None
    # Badge of its health, and the number of findings; empty: not judged.
    health: str = ""
    findings: int = 0

    @property
    def state(self) -> str:
        """The last order, and that nothing runs."""
        if self.driver or self.spouts:
            return self.ordered.value
        rest = ", deactivated" if self.ordered is State.DEACTIVATED else ""
        return f"not running{rest}"


class Steering:
    """Steers one topology. ``say`` reports to the operator, ``stopped`` ends every wait."""

    def __init__(
        self,
        note: TopologyNote,
        control: RedisControl,
        presences: RedisPresences,
        say: Callable[[str], None],
        stopped: threading.Event,
    ) -> None:
        self._name = note.name
        self._note = note
        self._control = control
        self._lease = Lease(presences)
        self._spout_seats = SpoutSeats(presences)
        self._say = say
        self._stopped = stopped

    @classmethod
    def open(
        cls, redis_url: str, name: str, say: Callable[[str], None], stopped: threading.Event
    ) -> Steering:
        """Connect to the topology of this name.

        Raises UsageError if it has not run on this Redis, RedisUnavailableError.
        """
        note = topology_named(redis_url, name)
        presences = RedisPresences(redis_url, name)
        return cls(note, RedisControl(redis_url, name), presences, say, stopped)

    def turn(self, state: State) -> None:
        """Activate or deactivate, and wait a few seconds for the spout workers to obey."""
        self._control.order(state)
        active = state is State.ACTIVE
        deadline = time.monotonic() + _ANSWER_S
        while (
            (late := self._others(active=active))
            and time.monotonic() < deadline
            and not self._stopped.wait(_LOOK_S)
        ):
            pass
        there = self._present()
        if not there:
            self._say(f"{self._name} does not run now; it will start {state.value}")
        elif late:
            self._say(
                f"{self._name} will be {state.value}: no answer yet from spout task {_listed(late)}"
            )
        else:
            pending = sum(presence.pending for presence in there.values())
            self._say(f"{self._name} is {state.value}, {counted(pending, 'message')} in flight")

    def pause(self, bolt: str) -> None:
        """Order the tasks of a bolt to begin nothing new. Raises UsageError for an unknown bolt."""
        self.check_pausable(bolt)
        self._control.pause(bolt)
        self._say(f"{bolt} of {self._name} is paused{self._from_when()}: {_PAUSED}")

    def resume(self, bolt: str) -> None:
        """Let the tasks of a paused bolt go on. Raises UsageError for a bolt that is not paused and
        does not exist.
        """
        if bolt not in self._control.paused():
            self.check_pausable(bolt)
            self._say(f"{bolt} of {self._name} is not paused")
            return
        self._control.resume(bolt)
        self._say(f"{bolt} of {self._name} goes on{self._from_when()}")

    def _from_when(self) -> str:
        runs = self._lease.holder() is not None
        return " within two seconds" if runs else ", once the topology runs"

    def check_pausable(self, bolt: str) -> None:
        """Raise UsageError for a spout, and for an unknown bolt."""
        bolts = [each.name for each in self._note.graph.bolts]
        if bolt in [each.name for each in self._note.graph.spouts]:
            raise UsageError(
                f"{bolt!r} is a spout of {self._name}: tiercel deactivate {self._name} stops spouts"
            )
        if bolt not in bolts:
            raise UsageError(
                f"{self._name} has no bolt {bolt!r}; its bolts are {', '.join(bolts)}"
                f"{did_you_mean(bolt, bolts)}"
            )

    def kill(self, wait_s: float | None) -> bool:
        """Deactivate, wait until nothing is in flight, then end every process.

        Returns True if all have ended. ``wait_s`` of None is the message timeout plus the
        ``execute_timeout_secs`` of bolts that may take longer. Messages still in flight then are
        requeued.
        """
        if not self._remaining():
            self._note_kill()
            self._say(f"{self._name} does not run")
            return True
        self._control.order(State.DEACTIVATED)
        if not self._drain(self._note.in_flight_secs if wait_s is None else wait_s):
            self._say(
                f"{self._name} stays deactivated: kill it again, or tiercel activate {self._name}"
            )
            return False
        self._control.order(State.KILLED)
        self._say(f"{self._name}: ending its processes")
        began = time.monotonic()
        while (left := self._remaining()) or time.monotonic() < began + _STANDS_S:
            if time.monotonic() > began + KILL_LASTS.total_seconds() or self._stopped.wait(_LOOK_S):
                break
        if left:
            self._say(
                f"{self._name} is killed, but not ended yet: {', '.join(left)}; does something "
                "start them again?"
            )
            return False
        self._note_kill()
        self._say(f"{self._name} has ended")
        return True

    def _note_kill(self) -> None:
        """Let the next start be active; until then, that nothing runs is no problem."""
        self._control.order(State.ACTIVE)
        self._control.note_kill()

    def check(self, change: Change) -> None:
        """Raise UsageError if ``change`` names a spout or an unknown bolt."""
        bolts = [bolt.name for bolt in self._note.graph.bolts]
        spouts = [spout.name for spout in self._note.graph.spouts]
        for name in change:
            if name in spouts:
                raise UsageError(
                    f"{name!r} is a spout of {self._name}: each of its tasks is a process; "
                    "change its parallelism in the code"
                )
            # An order for a bolt that is no longer in the code can be cancelled.
            if name not in bolts and name not in self._control.rebalanced(NO_REBALANCE).parallelism:
                raise UsageError(
                    f"{self._name} has no bolt {name!r}; its bolts are {', '.join(bolts)}"
                )
            if name not in bolts and change[name] is not None:
                raise UsageError(
                    f"{self._name} has no bolt {name!r} any more: --parallelism {name}=default "
                    "takes the order for it back"
                )

    def rebalance(self, change: Change) -> bool:
        """Have the driver begin a new run with these numbers of tasks; True once it has begun."""
        before = self._lease.holder()
        if before is None and not change:
            self._say(f"{self._name} does not run now; it is spread anew whenever it starts")
            return True
        self._control.rebalance(change)
        if before is None:
            self._say(f"{self._name} does not run now; it will start with {_wanted(change)}")
            return True
        self._say(
            f"{self._name}: a new run begins; messages in flight are finished, or emitted again"
        )
        deadline = time.monotonic() + _BEGIN_S
        began: Holder | None = None
        while time.monotonic() < deadline and not self._stopped.wait(_LOOK_S):
            if began is not None and not self._stands(change):
                self._say(
                    f"{self._name} has begun a new run{_found(began, change)}: another order to "
                    "rebalance came after this one"
                )
                return False
            holder = self._lease.holder()
            if holder is None or not holder.run or holder.run == before.run:
                continue
            began = holder
            if all(
                number in (None, began.parallelism.get(bolt)) for bolt, number in change.items()
            ):
                self._say(f"{self._name} has begun a new run{_found(began, change)}")
                return True
        self._say(f"{self._name} has {_NOT_WANTED if began else _NOT_BEGUN}")
        return False

    def _stands(self, change: Change) -> bool:
        """Return True if no later order has changed this one."""
        ordered = self._control.rebalanced(NO_REBALANCE).parallelism
        return all(ordered.get(bolt) == number for bolt, number in change.items())

    def close(self) -> None:
        """Release the connections. Idempotent."""
        self._control.close()
        self._lease.close()

    def _drain(self, wait_s: float) -> bool:
        """Wait until spouts are deactivated and nothing is in flight, at most ``wait_s``; False if
        interrupted.
        """
        began = time.monotonic()
        deadline = began + wait_s
        say_at = 0.0
        said = ""
        while not self._stopped.is_set():
            now = time.monotonic()
            there = self._present().values()
            pending = sum(presence.pending for presence in there)
            active = any(presence.active for presence in there)
            if (not pending and not active) or now >= deadline:
                return True
            line = f"{self._name}: {counted(pending, 'message')} in flight"
            # The report of a spout that still emits is up to a second old, and means little.
            if now >= say_at and line != said and (not active or now > began + _ANSWER_S):
                say_at = now + _SAY_S
                said = line
                self._say(f"{line}, waiting for {deadline - now:.0f} s at most")
            self._stopped.wait(min(_LOOK_S, deadline - now))
        return False

    def _present(self) -> dict[int, Presence]:
        return self._spout_seats.present(range(1, self._note.spout_tasks + 1))

    def _others(self, *, active: bool) -> list[int]:
        """Return the running spout tasks that have not obeyed yet."""
        return [
            task_id
            for task_id, presence in self._present().items()
            if presence.active is not active
        ]

    def check_ended(self) -> None:
        """Raise UsageError if a process of the topology runs."""
        if left := self._remaining():
            raise UsageError(
                f"{self._name} runs ({', '.join(left)}): tiercel kill {self._name} first"
            )

    def standing(self) -> Standing:
        """Look which processes run, and which orders were given."""
        present = self._present()
        holder = self._lease.holder()
        return Standing(
            name=self._name,
            ordered=self._control.state() or State.ACTIVE,
            driver=holder is not None,
            driver_at=None if holder is None else holder.whereabouts,
            spout_tasks=self._note.spout_tasks,
            spouts=len(present),
            in_flight=sum(each.pending for each in present.values()),
            last_run=self._lease.newest_run(),
        )

    def _remaining(self) -> list[str]:
        """Return the processes that still run."""
        driver = ["the driver"] if self._lease.holder() is not None else []
        return driver + [f"spout task {task_id}" for task_id in self._present()]


@contextmanager
def while_stopped(redis_url: str, name: str, why: str) -> Iterator[int]:
    """Keep drivers of a topology out, and yield a number above all numbers of its runs.

    A driver that starts meanwhile waits in reserve; monitors show ``why``. Raises UsageError if a
    driver runs, RedisUnavailableError.
    """
    with (
        closing(RedisPresences(redis_url, name)) as presences,
        closing(RedisControl(redis_url, name)) as control,
    ):
        lease = Lease(presences)
        keeper = Keeper(lease)
        try:
            was_killed = control.was_killed()
            number = keeper.draw() if keeper.take() else None
            if number is None:
                raise UsageError(f"{name} runs{_at(lease.holder())}: tiercel kill {name} first")
            if was_killed:
                # A number that is no run's: the topology is still as it was.
                control.note_kill()
            keeper.attend_none(why)
            yield number
        finally:
            keeper.close()


def _at(holder: Holder | None) -> str:
    place = None if holder is None else holder.whereabouts
    return "" if place is None else f", its driver is process {place.pid} on {place.host}"


def _wanted(change: Change) -> str:
    said = [f"{bolt}={'default' if number is None else number}" for bolt, number in change.items()]
    return ", ".join(said)


def _found(holder: Holder, change: Change) -> str:
    found = [f"{bolt}={holder.parallelism[bolt]}" for bolt in change if bolt in holder.parallelism]
    return f" with {', '.join(found)}" if found else ""


def _listed(task_ids: Iterable[int]) -> str:
    return ", ".join(map(str, task_ids))


def log_action(action: str, target: str, outcome: str, origin: str) -> None:
    """Log an ``action`` on a topology or queue, its outcome, and its origin."""
    said = {"action": action, "target": target, "outcome": outcome, "origin": origin}
    log.info("%s %s: %s; by %s", *said.values(), extra={"event": "action", **said})


def this_user() -> str:
    """Return USER@MACHINE of this process, as the origin of a command."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
