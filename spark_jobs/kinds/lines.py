"""The line in front of the flight of one bolt task, either open or limited by a rate.

Tuples pass an open line at once. In front of a rate limit each tuple waits for a permit; if the
line has no room, the tuple goes back to its spout and is redelivered later.

Tuples in line take no place in the flight. The line reports them to the spouts, so that their
messages do not time out and do not count as in flight.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ledger import Ledger
from tiercel.acker.limits import Grant, RateLimits
from tiercel.queues import outage
from tiercel.queues.habits import habits_of
from tiercel.spark_jobs.bolts.verdicts import LONGEST_S, GivenBack
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import waiting_roots
from tiercel.spark_jobs.topology.bolt_settings import BoltLimit, limit_of, ordered_by_of
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology, line_at
from tiercel.spark_jobs.topology.grouping import Fields, key_digest


class OpenLine:
    """A line without a limit. The task's thread only."""

    # True if tuples may have to wait.
    limited = False

    def __init__(self) -> None:
        self._new: list[Call] = []
        # Number of waiting tuples.
        self.held = 0
        # Number of waiting tuples that may need nothing but a free place.
        self.crowd = 0

    @property
    def full(self) -> bool:
        """True if the task must take no further tuples from the inbox."""
        return False

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock at which the line has work to do.

        None: not before a tuple arrives or a call ends.
        """
        return None

    def add(self, call: Call, *, first: bool = False) -> None:  # noqa: ARG002 - for LimitLine
        """Queue a call; it goes ``first`` if other tuples of its value wait for it."""
        self._new.append(call)

    def leave(self, room: int) -> list[Call]:  # noqa: ARG002 - for LimitLine
        """Remove and return the calls that may begin now. Call it every turn, even without room."""
        new = self._new
        self._new = []
        return new

    def over(self) -> list[Call]:
        """Return the calls that end without having begun; their ``error`` says why."""
        return []

    def close(self) -> None:
        """Close the line when the attempt ends. Waiting tuples stay in the inbox."""


# The broker rounds delays up, by at most 10 %. A tuple that comes early waits or goes back again; a
# tuple that comes late leaves permits unused.
_EARLY = 0.9
_LEAST_S = 1.0
_FORGET = 10_000
_REASON = "more tuples wait for the rate limit than begin soon"
log = logging.getLogger(__name__)

# Maximum number of waiting tuples per task, over all values: half the bound of an inbox.
MOST_HELD = 10_000
# Shorter waits are not worth reporting.
_TELL_S = 0.1
_RETRY_S = 0.1
# Three reports per message timeout, so that one report may fail.
_TELLS_PER_TIMEOUT = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LineSettings:
    """Settings of the line of one task."""

    task: int
    # Returns the value of the limit's ``by`` fields for the tuple of a call.
    value_of: Callable[[Call], bytes]
    # Maximum number of waiting tuples per value; further ones go back to the spout.
    most_per_value: int
    # Number of waiting tuples at which the task takes no more from the inbox.
    most: int
    # None: messages never time out.
    timeout_s: float | None
    # None: tuples never go back to the spout.
    returns: Returns | None = None


class LimitLine(OpenLine):
    """``OpenLine`` in front of a rate limit. Times are in seconds on ``clock``."""

    limited = True

    def __init__(
        self,
        limits: RateLimits,
        settings: LineSettings,
        ledger: Ledger | None,
        clock: Callable[[], float],
        behind: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """``behind`` returns the roots of the tuples in the inbox; used while the line is full."""
        super().__init__()
        self._limits = limits
        self._settings = settings
        self._ledger = ledger
        self._clock = clock
        self._behind = behind
        self._lines: dict[bytes, deque[Call]] = {}
        # Values that need permits now, in order; and a heap of values that need permits later.
        self._due: dict[bytes, None] = {}
        self._later: list[tuple[float, bytes]] = []
        self._retry_at = float("-inf")
        self._over: list[Call] = []
        self._untold: list[Call] = []
        self._tell_at = float("inf")
        timeout_s = settings.timeout_s
        self._tells_s = None if timeout_s is None else timeout_s / _TELLS_PER_TIMEOUT
        self._tell_all_at = float("inf")
        self._has_room = True

    @property
    def full(self) -> bool:
        return self.held >= self._settings.most

    @property
    def next_at(self) -> float | None:
        soonest = min(self._tell_at, self._tell_all_at)
        if self._has_room:
            asks_at = self._later[0][0] if self._later else float("inf")
            asks_at = self._retry_at if self._due else asks_at
            soonest = min(soonest, max(asks_at, self._retry_at))
        return soonest if self.held and soonest < float("inf") else None

    def add(self, call: Call, *, first: bool = False) -> None:
        """Queue a call for a permit, or send it back if too many tuples wait already."""
        if call.tup.is_tick:
            super().add(call)
            return
        value = self._settings.value_of(call)
        line = self._lines.get(value)
        if line is not None and not first and self._goes_back(call, value, len(line)):
            self._over.append(call)
            return
        if line is None:
            line = self._lines[value] = deque()
            self._due[value] = None
        (line.appendleft if first else line.append)(call)
        self.held += 1
        if self._ledger is not None:
            now = self._clock()
            self._untold.append(call)
            self._tell_at = min(self._tell_at, now + _TELL_S)
            if self._tells_s is not None:
                self._tell_all_at = min(self._tell_all_at, now + self._tells_s)

    def leave(self, room: int) -> list[Call]:
        now = self._clock()
        beginning = self._permitted(room, now) if room > 0 and now >= self._retry_at else []
        # Without room, the line waits for a call to end.
        self._has_room = len(beginning) < room
        self.crowd = 0 if self._has_room else sum(len(self._lines[one]) for one in self._due)
        self._tell(now)
        # Ticks need no permit.
        return [*super().leave(room), *beginning]

    def over(self) -> list[Call]:
        """Return the calls whose tuples are redelivered later."""
        over = self._over
        self._over = []
        return over

    def close(self) -> None:
        """Withdraw the requests for permits. Waiting tuples stay in the inbox."""
        outage.REDIS.leaves(("limit", self._settings.task))
        asked = [value for value in self._lines if value not in self._due]
        self._lines.clear()
        self.held = 0
        if not asked:
            return
        try:
            self._limits.give_back(self._settings.task, dict.fromkeys(asked, 0))
        except RedisUnavailableError as error:
            log.debug(
                "could not give places at a limit back, they expire: %s",
                error,
                extra={"event": "redis_away"},
            )

    # -- permits ---------------------------------------------------------------------------------

    def _permitted(self, room: int, now: float) -> list[Call]:
        while self._later and self._later[0][0] <= now:
            _, value = heapq.heappop(self._later)
            if value in self._lines:
                self._due[value] = None
        wants = self._wants(room)
        if not wants:
            return []
        try:
            grants = self._limits.take(self._settings.task, wants)
        except RedisUnavailableError as error:
            self._wait_for_redis(error, now)
            return []
        outage.REDIS.ends(("limit", self._settings.task))
        return self._begun(wants, grants, now)

    def _wants(self, room: int) -> dict[bytes, int]:
        """Return how many permits to request per value: no more than ``room`` in total."""
        wants: dict[bytes, int] = {}
        for value in self._due:
            if room <= 0:
                break
            wants[value] = min(len(self._lines[value]), room)
            room -= wants[value]
        return wants

    def _begun(
        self, wants: Mapping[bytes, int], grants: Mapping[bytes, Grant], now: float
    ) -> list[Call]:
        beginning: list[Call] = []
        for value in wants:
            grant = grants[value]
            line = self._lines[value]
            beginning += [line.popleft() for _ in range(min(grant.permits, len(line)))]
            del self._due[value]
            if not line:
                del self._lines[value]
            elif grant.again_ms is not None:
                heapq.heappush(self._later, (now + grant.again_ms / 1000, value))
            else:
                # Queue the value behind the others.
                self._due[value] = None
        self.held -= len(beginning)
        if not self.held:
            self._forget_tells()
        return sorted(beginning, key=lambda call: call.number)

    def _wait_for_redis(self, error: RedisUnavailableError, now: float) -> None:
        self._retry_at = now + _RETRY_S
        outage.REDIS.begins(("limit", self._settings.task), error)

    # -- tuples that go back to the spout --------------------------------------------------------

    def _goes_back(self, call: Call, value: bytes, before: int) -> bool:
        """Return True and set the error of the call if its tuple goes back to the spout."""
        returns = self._settings.returns
        if returns is None or not _roots(call):
            return False
        if before < self._settings.most_per_value and self.held < MOST_HELD:
            return False
        call.error = returns.later(value, before, self._clock())
        return True

    # -- reports to the spouts -------------------------------------------------------------------

    def _tell(self, now: float) -> None:
        """Report each new waiting tuple once, and all waiting tuples before they time out."""
        ledger = self._ledger
        if ledger is None or not self.held or min(self._tell_at, self._tell_all_at) > now:
            return
        everything = now >= self._tell_all_at
        # Tuples that only need a free place are ordinary work and are not reported.
        waiting = [
            call for value, line in self._lines.items() if value not in self._due for call in line
        ]
        if not everything:
            new = {call.number for call in self._untold}
            waiting = [call for call in waiting if call.number in new]
        mine = {root for call in waiting for root in _roots(call)}
        try:
            ledger.reset_timeout(sorted(mine), waiting=True)
            if everything and self.full:
                ledger.reset_timeout(sorted({*self._behind()} - mine))
        except RedisUnavailableError as error:
            log.debug(
                "could not report waiting tuples, will retry: %s",
                error,
                extra={"event": "redis_away"},
            )
            self._tell_at = now + _TELL_S
            return
        self._untold.clear()
        self._tell_at = float("inf")
        if everything and self._tells_s is not None:
            self._tell_all_at = now + self._tells_s

    def _forget_tells(self) -> None:
        self._untold.clear()
        self._tell_at = self._tell_all_at = float("inf")


def _roots(call: Call) -> Sequence[int]:
    return [] if call.lineage is None else roots_of(call.lineage, call.tup.row)


class Returns:
    """Schedules tuples that go back to the spout, per value. Times are in seconds on one clock."""

    def __init__(self, interval_s: float) -> None:
        """``interval_s`` is the time between two permits for this task."""
        self._interval_s = interval_s
        # Per value, the time of the next turn to assign.
        self._promised: dict[bytes, float] = {}
        # Number of values from which on those are forgotten whose time has passed.
        self._forget_at = _FORGET

    def later(self, value: bytes, before: int, now: float) -> GivenBack:
        """Return the delay of a tuple whose value has ``before`` tuples in line.

        Each tuple that goes back gets a turn of its own.
        """
        if len(self._promised) > self._forget_at:
            self._promised = {one: at for one, at in self._promised.items() if at > now}
            # If most of them stay, the next look at all of them must be far off.
            self._forget_at = max(_FORGET, 2 * len(self._promised))
        turn = max(now + before * self._interval_s, self._promised.get(value, now))
        self._promised[value] = turn + self._interval_s
        seconds = min(LONGEST_S, max(_LEAST_S, _EARLY * (turn - now)))
        return GivenBack(seconds, _REASON)


# Tuples that will begin within this time wait in the task. The time is longer than most messages
# live, and far shorter than the broker's consumer timeout.
_HELD_S = 60.0


def line_of(around: Around, task: int) -> OpenLine:
    """Create the line of a task."""
    topology = around.topology
    component = topology.component_of(task)
    spec = topology.bolts[component]
    limit = limit_of(spec)
    if limit is None:
        return OpenLine()
    config = topology.config
    settings = LineSettings(
        task=task,
        value_of=_value_of(topology, limit),
        timeout_s=config.message_timeout_secs if config.enable_message_timeouts else None,
        **_bounds(topology, spec, limit, takes_from_line=line_at(topology, task) is not None),
    )
    return LimitLine(
        around.limits[component],
        settings,
        around.ledger,
        around.loop.time,
        partial(waiting_roots, around.inboxes, around.run, topology, task),
    )


def _bounds(
    topology: Topology, spec: BoltSpec, limit: BoltLimit, *, takes_from_line: bool
) -> dict[str, Any]:
    interval_s = limit.rate.interval_us / 1e6
    soon = max(1, min(MOST_HELD, int(_HELD_S / interval_s)))
    goes_back = (limit.by or interval_s > _HELD_S) and _may_go_back(topology, spec)
    if goes_back:
        # One task may hold all waiting tuples of a value: because of the grouping, or because any
        # free task takes tuples from the bolt's line.
        shared = _is_grouped_by(spec, limit.by) or takes_from_line
        share = 1 if shared else spec.parallelism
        # Leave room for untracked tuples, which cannot go back.
        return {
            "most_per_value": soon,
            "most": 2 * MOST_HELD,
            "returns": Returns(interval_s * share),
        }
    mine = max(1, soon // spec.parallelism)
    return {"most_per_value": soon, "most": MOST_HELD if limit.by else mine}


def _may_go_back(topology: Topology, spec: BoltSpec) -> bool:
    """Return True if all spouts can delay a message and the bolt has no order."""
    return not ordered_by_of(spec) and all(
        habits_of(one.spout).retries_later for one in topology.spouts.values()
    )


def _is_grouped_by(spec: BoltSpec, fields: tuple[str, ...]) -> bool:
    """Return True if all tuples of one value go to one task."""
    return bool(fields) and all(
        type(one.grouping) is Fields and set(one.grouping.fields) <= set(fields)
        for one in spec.subscriptions
    )


def _value_of(topology: Topology, limit: BoltLimit) -> Callable[[Call], bytes]:
    if not limit.by:
        return lambda _call: b""
    digests: dict[tuple[str, str], Callable[[Sequence[Any]], bytes]] = {}

    def value_of(call: Call) -> bytes:
        tup = call.tup
        stream = (tup.source_component, tup.source_stream)
        find = digests.get(stream)
        if find is None:
            source = topology.spec(tup.source_component)
            find = digests[stream] = key_digest(source.streams[tup.source_stream], limit.by)
        return find(tup.values)

    return value_of
