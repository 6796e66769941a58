"""The line before the flight of one bolt task: open, or before a rate limit.

Each tuple passes an open line at once. Before a rate limit it waits for a permit, and goes back to
its spout, for a later time, where the line has no room for it.

Tuples in line stand before the flight: none of them has a place in it. The spouts are told that
they wait, so that their messages do not time out, and there is room for others.
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
from tiercel.queues.habits import habits_of
from tiercel.spark_jobs.bolts.verdicts import LONGEST_S, RetryLater
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import waiting_roots
from tiercel.spark_jobs.topology.bolt_settings import BoltLimit, limit_of, ordered_by_of
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology, line_at
from tiercel.spark_jobs.topology.grouping import Fields, key_digest


class OpenLine:
    """Tuples that come to one bolt task. One thread only, the task's."""

    # True if a tuple may have to wait.
    limited = False

    def __init__(self) -> None:
        self._new: list[Call] = []
        # Number of tuples that wait.
        self.held = 0
        # Number of waiting tuples that may lack nothing but a place.
        self.crowd = 0

    @property
    def full(self) -> bool:
        """True if no further tuple is to be taken from the inbox."""
        return False

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock at which there is something to do here; None: when a tuple
        comes, or a call ends.
        """
        return None

    def add(self, call: Call, *, first: bool = False) -> None:  # noqa: ARG002 - for those with a limit
        """A tuple comes; ``first`` says that others of its value wait for it."""
        self._new.append(call)

    def leave(self, room: int) -> list[Call]:  # noqa: ARG002 - for those with a limit
        """Take out the calls that may begin now. Call it in every turn, even without room."""
        new = self._new
        self._new = []
        return new

    def over(self) -> list[Call]:
        """Hand out the calls that end without having begun: their error says why."""
        return []

    def close(self) -> None:
        """The attempt ends. What waits stays in the inbox."""


# The broker rounds up, by one part in ten at most. One that comes early waits, or goes back again;
# one that comes late leaves permits unused.
_EARLY = 0.9
_LEAST_S = 1.0
_FORGET = 10_000
_REASON = "more tuples wait for the rate limit than begin soon"
log = logging.getLogger(__name__)

# All values together, in one task: half of what an inbox holds.
MOST_HELD = 10_000
# Shorter waits are not worth reporting.
_TELL_S = 0.1
_RETRY_S = 0.1
# Fractions of a message's timeout, so that one call may fail.
_TELLS_PER_TIMEOUT = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LineSettings:
    """Everything that the line of one task knows about its bolt."""

    task: int
    # The limit's value of a tuple.
    value_of: Callable[[Call], bytes]
    # Tuples of one value that wait, before others of it go back.
    most_per_value: int
    # Tuples that wait before no further one is taken from the inbox.
    most: int
    # None: nothing times out.
    timeout_s: float | None
    # None: what waits is never given back.
    returns: Returns | None = None


class LimitLine(OpenLine):
    """``OpenLine`` before a limit. Times are seconds on ``clock``."""

    limited = True

    def __init__(
        self,
        limits: RateLimits,
        settings: LineSettings,
        ledger: Ledger | None,
        clock: Callable[[], float],
        behind: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """``behind`` gives the roots of what is in the inbox, for a line that is full."""
        super().__init__()
        self._limits = limits
        self._settings = settings
        self._ledger = ledger
        self._clock = clock
        self._behind = behind
        self._lines: dict[bytes, deque[Call]] = {}
        # Values to ask for now, in order; and those to ask for later, the next one first.
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
        self._said = False

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
        """Let a tuple wait for its permit; or not at all, for too many wait already."""
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
        # Else a call that ends is what it waits for.
        self._has_room = len(beginning) < room
        self.crowd = 0 if self._has_room else sum(len(self._lines[one]) for one in self._due)
        self._tell(now)
        # Ticks pass.
        return [*super().leave(room), *beginning]

    def over(self) -> list[Call]:
        """Hand out the calls whose tuples are delivered again later."""
        over = self._over
        self._over = []
        return over

    def close(self) -> None:
        """Leave the lines at the limit. What waits stays in the inbox."""
        asked = [value for value in self._lines if value not in self._due]
        self._lines.clear()
        self.held = 0
        if not asked:
            return
        try:
            self._limits.give_back(self._settings.task, dict.fromkeys(asked, 0))
        except RedisUnavailableError as error:
            log.debug("places at a limit lapse: %s", error, extra={"event": "redis_away"})

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
        self._said = False
        return self._begun(wants, grants, now)

    def _wants(self, room: int) -> dict[bytes, int]:
        """Return how many permits to ask for: no more than can be used now."""
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
                # Behind the other values.
                self._due[value] = None
        self.held -= len(beginning)
        if not self.held:
            self._forget_tells()
        return sorted(beginning, key=lambda call: call.number)

    def _wait_for_redis(self, error: RedisUnavailableError, now: float) -> None:
        self._retry_at = now + _RETRY_S
        if not self._said:
            log.warning(
                "task %d begins no tuple without its rate limit: %s",
                self._settings.task, error, extra={"event": "redis_away"},
            )  # fmt: skip
        self._said = True

    # -- what does not wait here -----------------------------------------------------------------

    def _goes_back(self, call: Call, value: bytes, before: int) -> bool:
        """Return True, with the error set, if the tuple is to come again when its turn is."""
        returns = self._settings.returns
        if returns is None or not _roots(call):
            return False
        if before < self._settings.most_per_value and self.held < MOST_HELD:
            return False
        call.error = returns.later(value, before, self._clock())
        return True

    # -- what is told of those that wait ---------------------------------------------------------

    def _tell(self, now: float) -> None:
        """Say that they wait: of each once soon, and of all before they time out."""
        ledger = self._ledger
        if ledger is None or not self.held or min(self._tell_at, self._tell_all_at) > now:
            return
        everything = now >= self._tell_all_at
        # What a place is all that is missing for is work as any other.
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
            log.debug("told later that tuples wait: %s", error, extra={"event": "redis_away"})
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
    """Of one bolt task, per value of the limit. Times are seconds on one clock."""

    def __init__(self, interval_s: float) -> None:
        """``interval_s`` from one permit to the next, as far as this task gets them."""
        self._interval_s = interval_s
        # Time of the last turn that was promised.
        self._promised: dict[bytes, float] = {}

    def later(self, value: bytes, before: int, now: float) -> RetryLater:
        """Return when a tuple comes again whose value has ``before`` tuples in line: each of those
        that go back has a turn of its own.
        """
        if len(self._promised) > _FORGET:
            self._promised = {one: at for one, at in self._promised.items() if at > now}
        turn = max(now + before * self._interval_s, self._promised.get(value, now))
        self._promised[value] = turn + self._interval_s
        seconds = min(LONGEST_S, max(_LEAST_S, _EARLY * (turn - now)))
        return RetryLater(seconds, _REASON, blame=False)


# What begins in this time waits in the task: longer than most messages live, and far shorter than
# the time for which a broker lets a message be held.
_HELD_S = 60.0


def line_of(around: Around, task: int) -> OpenLine:
    """Return the line of a task."""
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
        # What waits for one value is with the tasks that were free, which may be any one of them.
        shared = _is_grouped_by(spec, limit.by) or takes_from_line
        share = 1 if shared else spec.parallelism
        # Untracked tuples cannot go back.
        return {
            "most_per_value": soon,
            "most": 2 * MOST_HELD,
            "returns": Returns(interval_s * share),
        }
    mine = max(1, soon // spec.parallelism)
    return {"most_per_value": soon, "most": MOST_HELD if limit.by else mine}


def _may_go_back(topology: Topology, spec: BoltSpec) -> bool:
    """Return True if all spouts bring messages again at a time, and no order would suffer."""
    return not ordered_by_of(spec) and all(
        habits_of(one.spout).retries_later for one in topology.spouts.values()
    )


def _is_grouped_by(spec: BoltSpec, fields: tuple[str, ...]) -> bool:
    """Return True if all tuples of one value come to one task."""
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
