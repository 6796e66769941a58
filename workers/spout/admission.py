"""Bound on the spout tuples that a task may have in flight: fixed, or adapted to the rate at which
trees complete.

The algorithm combines BBR's bandwidth-delay product, with a floor under the delay, with TCP's slow
start and multiplicative decrease on timeouts: docs/decisions/what-is-emitted-can-be-finished.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import NamedTuple

from tiercel.acker.ids import is_extra, task_of
from tiercel.acker.inbox.contract import InboxFigures
from tiercel.spark_jobs.topology.bolt_settings import (
    at_once_of,
    concurrency_of,
    is_only_shuffled,
    is_sink,
    ordered_by_of,
    rates_of,
)
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology, line_at
from tiercel.workers.control.presence import attended

# One task finishes two tuples of ten seconds each within the default timeout.
FIRST_BOUND = 2
UNPROVEN_BOUND = 16  # small for most workloads, enough for bolts that hold a few tuples
LARGEST_BOUND = 200_000
# The target residence time is short at high rates, because the broker searches all unacked messages
# for each message that is acked out of order. It is longer while few tuples are in flight. Tasks
# that pull from a line when free need fewer tuples than tasks whose tuples are dealt to inboxes.
_SHORT_S, _SHORT_PER_BOLT_S, _LONG_S = 0.17, 0.07, 2.0
_FEW, _FEW_DEALT = 17, 256
# The target is twice as long between these two rates: on a busy machine the fixed costs of a quick
# step take a tenth of a second, and steps of few tuples consist of little else.
_QUICK_S, _QUICK_FROM, _QUICK_TO = 0.34, 2_000.0, 12_000.0
# Tuples per task that keep most tasks busy, where they are dealt.
_DEALT = 2.5
# Headroom over the base latency: it lets the bound grow until tuples queue.
_GAIN = 1.5
# The base latency expires after this time and is measured again at this fraction of the bound.
_BASE_S, _BASE_ROUNDS, _DRAIN = 60.0, 20, 0.6
# The rate is a mean over at least this many trees, so that it includes slow tuples.
_SAMPLE = 128
# A bound that has not been reached for this long says nothing about the bolts.
_GAP_S, _IDLE_S = 1.0, 60.0
# Looks at the bolts that must agree before slow tuples let the bound grow; and before a long call
# does, beside which much more is free.
_LOOKS, _LOOKS_BESIDE_A_CALL = 8, 2
_MUCH_MORE = 1.5
# Tuples that are younger than this are on their way through quick bolts.
_PASSING_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Properties of a topology that determine how many tuples keep its tasks busy."""

    # Bolts in a row.
    depth: int = 1
    # Tuples that all bolts together execute at once, divided by the number of spout tasks.
    places: int = 1
    # True if some bolt's tuples wait in its tasks' own inboxes, not in a line that they share.
    dealt: bool = False
    # Tuples of each spout task that begin at once, none behind another.
    first: int = FIRST_BOUND

    @classmethod
    def of(cls, topology: Topology) -> Shape:
        """Read the shape of a topology."""
        bolts = topology.bolts
        spout_tasks = max(1, topology.spout_tasks)
        places = sum(one.parallelism * (concurrency_of(one) or 1) for one in bolts.values())
        return cls(
            depth=topology.depth,
            places=-(-places // spout_tasks),
            dealt=any(
                one.parallelism > 1 and line_at(topology, topology.task_ids(bolt)[0]) is None
                for bolt, one in bolts.items()
            ),
            first=max(FIRST_BOUND, _begin_at_once(topology) // spout_tasks),
        )


def _begin_at_once(topology: Topology) -> int:
    """Return the number of spout tuples that bolts execute at the same time, if each tuple passes
    only one bolt, which is shuffled, and sinks; for any other topology 0.
    """
    rates = rates_of(topology)
    places = []
    for bolt, spec in topology.bolts.items():
        if is_sink(spec.bolt):
            continue
        is_first = all(one.component in topology.spouts for one in spec.subscriptions)
        if not is_first or not is_only_shuffled(spec) or ordered_by_of(spec) or bolt in rates:
            return 0
        places.append(spec.parallelism * _at_once(spec))
    return min(places, default=0)


def _at_once(spec: BoltSpec) -> int:
    """Return how many tuples begin at once in a task, which takes no others beside a batch."""
    return min(at_once_of(spec), concurrency_of(spec) or 1)


class Crowd(NamedTuple):
    """The tuples at the bolts at one time."""

    # Tuples per place of the fullest bolt. Above 1 if tuples wait for a free place.
    fullest: float
    # True if a task is in a call of its bolt for seconds.
    in_long_call: bool
    # True if tuples may wait although places are free, in an order or for a rate limit.
    in_turn: bool = False


def crowd_of(topology: Topology, figures: Mapping[int, InboxFigures]) -> Crowd:
    """Return the crowd at the bolts, from the figures of ``inboxes_of(topology)`` and of extra
    tasks.
    """
    fullest, in_long_call, in_turn = 0.0, False, False
    rates = rates_of(topology)
    extra = [task for task in figures if is_extra(task) and attended(figures[task])]
    for bolt, spec in topology.bolts.items():
        tasks = topology.task_ids(bolt)
        further = [task for task in extra if task_of(task) in tasks]
        inboxes = [figures[task] for task in (*tasks, *further)]
        line = line_at(topology, tasks[0])
        shared = inboxes if line is None else [*inboxes, figures[line]]
        staffed = [each for each in inboxes if attended(each)]
        in_long_call |= any(each.doing_s is not None for each in staffed)
        if ordered_by_of(spec) or bolt in rates:
            in_turn |= any(each.tuples for each in shared)
        if max(each.oldest_s for each in shared) < _PASSING_S:
            continue
        places = _at_once(spec)
        # Tuples in the inbox behind a call that may be long do not time out.
        renewed = topology.may_outlast_timeout(bolt)
        if not renewed and (line is None or not is_only_shuffled(spec)):
            fullest = max(fullest, max(each.tuples for each in inboxes) / places)
        if renewed or line is not None:
            room = places * len(staffed) * (_DEALT if line is None else 1)
            tuples = sum(each.tuples for each in shared)
            fullest = max(fullest, tuples / room if staffed else float("inf"))
    return Crowd(fullest, in_long_call, in_turn)


class Admission:
    """The bound of one spout task. One thread; times are seconds on one monotonic clock.

    By Little's law, tuples in flight are completions per second times residence time. While the
    bound is reached, completions are counted in rounds: a round ends after ``bound`` completions.
    It waits for no particular tuple, so a tuple without an outcome delays nothing.

    * The first bound is 2, or as many tuples as begin at once if each passes one bolt only.
    * The bound becomes rate times target, and at most doubles or halves per round. The target is a
      fixed residence time, or 1.5 times the base latency if that is longer.
    * The bound grows until every task has a tuple, while that many tuples finish in time. Tuples
      that take more than 0.4 of the timeout (0.2 where they are dealt) would not all finish if one
      had to wait for another. For them the bound grows as long as no tuple waits for a free place.
    * While nothing completes and a task is in a long call, the bound doubles every two looks that
      find many free places.
    * A timeout halves the bound, once for all tuples that were emitted before. After a long round
      it leaves five seconds of work: tasks may be busy with tuples that timed out before. Half of
      the bound that timed out is a threshold, from which slow tuples add an eighth per round.
    * If nothing completes for seven tenths of the timeout, bolts may be holding tuples until more
      arrive. The bound is then raised to 16, less often after timeouts. In a topology without a
      timeout, it grows each time. If tasks are in long calls, it grows only to the free places.
    * A bound that is not reached for a minute halves each second, down to 16, the first bound or
      twice the tuples in flight: the next burst may be of different work.
    """

    def __init__(
        self,
        *,
        bound: int | None = None,
        fixed: bool = False,
        timeout: timedelta | None = None,
        shape: Shape | None = None,
    ) -> None:
        shape = shape or Shape()
        # Number of tuples that may be in flight now.
        self.bound = min(shape.first, LARGEST_BOUND) if bound is None else bound
        self._fixed = fixed
        self._timeout_s = float("inf") if timeout is None else timeout.total_seconds()
        self._silent_s = min(21.0, 0.7 * self._timeout_s)
        self._patience_s = self._silent_s
        self.follow(shape)
        self._reached_at = self._limited_since = float("-inf")
        self._completed_at = self._decreased_at = self._tried_at = float("-inf")
        self._called_at = float("-inf")
        self._fullest = 0.0
        # Looks in a row that found much more room than is used, beside a long call.
        self._free_looks = 0
        self._base_s, self._base_at = float("inf"), float("-inf")
        # Rounds left in which the bound stays small to find the base latency.
        self._draining = 0
        # Completions and seconds of each of the last rounds.
        self._rounds: deque[tuple[int, float]] = deque()
        # True if tuples of the last round took too long for one to wait for another.
        self._slow = False
        self._start_again(self.bound, float("-inf"))

    @classmethod
    def for_topology(
        cls,
        max_spout_pending: int | None,
        message_timeout: timedelta | None,
        shape: Shape | None = None,
    ) -> Admission:
        """Return a fixed bound if the topology sets one, else an adaptive bound."""
        if max_spout_pending is not None:
            return cls(bound=max_spout_pending, fixed=True)
        return cls(timeout=message_timeout, shape=shape)

    def follow(self, shape: Shape) -> None:
        """Adapt to new numbers of tasks per bolt."""
        # As TCP's slow start threshold: timeouts under other numbers say nothing about these.
        self._threshold = LARGEST_BOUND
        self._first = shape.first
        self._places = shape.places
        self._few = _FEW_DEALT if shape.dealt else max(_FEW, 4 * shape.places)
        self._enough = max(FIRST_BOUND, int((_DEALT if shape.dealt else 1.5) * shape.places))
        self._enough_s = self._timeout_s * (0.3 if shape.dealt else 0.6)
        self._short_s = min(max(_SHORT_S, _SHORT_PER_BOLT_S * shape.depth), self._timeout_s / 6)
        self._long_s = max(self._short_s, min(_LONG_S, self._timeout_s / 6))
        self._quick_s = min(_QUICK_S, self._timeout_s / 6)

    def reached(self, now: float) -> None:
        """Note that the bound held back a tuple."""
        if now - self._reached_at > _GAP_S:
            self._limited_since = now
            self._begin_round(now)
        self._reached_at = now

    def completed(self, count: int, total_s: float, now: float) -> None:
        """Note trees that completed or wait for a rate limit, and the sum of their latencies."""
        if count:
            self._completed_at = now
            self._count(count, total_s, now)

    def failed(self, latency_s: float, now: float) -> None:
        """Note that a bolt failed a tuple.

        Below a bound of 16, a failure counts as a completion: otherwise messages that always fail
        would be emitted two at a time. From 16 on it does not: otherwise a bolt whose database is
        down would raise the bound.
        """
        if self.bound < UNPROVEN_BOUND:
            self._most = UNPROVEN_BOUND
            self._count(1, latency_s, now)

    def timed_out(self, emitted_at: float, now: float) -> None:
        """Note that a tuple timed out."""
        if self._fixed or emitted_at < self._decreased_at:
            return
        bound, seconds = self.bound // 2, now - self._began
        if seconds >= self._timeout_s / 2:
            bound = min(bound, int(self._done / seconds * self._timeout_s / 6))
        self._patience_s = max(self._patience_s, 8 * self._timeout_s)
        self._decreased_at = now
        self._threshold = max(1, self.bound // 2)
        self._start_again(max(1, bound), now)

    def look(self, now: float, in_flight: int, crowd: Callable[[], Crowd | None]) -> None:
        """Check for idle time, a standstill, and free places; called about once per second.

        ``crowd`` asks Redis, so it is called only in a standstill or while tuples are slow; None if
        Redis does not answer.
        """
        if self._fixed:
            return
        is_idle = now - self._reached_at > _IDLE_S
        if is_idle:
            least = max(UNPROVEN_BOUND, min(self._first, self._threshold))
            self.bound = min(self.bound, max(least, self.bound // 2, 2 * in_flight))
        since = max(self._completed_at, self._limited_since, self._tried_at)
        silent_s = now - since if in_flight >= self.bound else 0.0
        is_slow = self._slow and not is_idle
        if not in_flight or not (silent_s >= _GAP_S or is_slow):
            return
        found = crowd()
        if found is None:
            return
        if found.in_long_call:
            self._called_at = now
            self._fill_places(in_flight, found, silent_s, now)
        if silent_s < self._patience_s / 2 and not is_slow:
            return
        self._looks += 1
        self._fullest = max(self._fullest, found.fullest / in_flight)
        if silent_s < self._patience_s:
            return
        if now - self._called_at > self._patience_s / 2 or self._timeout_s == float("inf"):
            self._try_more(now)
        elif self._looks >= _LOOKS:
            self._tried_at = now
            most = max(UNPROVEN_BOUND, 2 * self.bound)
            self.bound = max(self.bound, min(self._room(self._fullest), most))

    def _fill_places(self, in_flight: int, found: Crowd, silent_s: float, now: float) -> None:
        """Double the bound if a bolt works for long on its first tuples, and much of it is free."""
        room = min(self._room(found.fullest / in_flight), self._threshold)
        is_free = silent_s >= _GAP_S and room >= _MUCH_MORE * self.bound and not found.in_turn
        self._free_looks = self._free_looks + 1 if is_free else 0
        if self._free_looks == _LOOKS_BESIDE_A_CALL:
            self._free_looks = 0
            self._tried_at = now
            self.bound = min(2 * self.bound, room)
            self._look_anew()

    def _try_more(self, now: float) -> None:
        self._tried_at = now
        if self._timeout_s == float("inf"):
            self._start_again(min(LARGEST_BOUND, 8 * self.bound), now)
        else:
            self._patience_s *= 2
            self._start_again(max(self.bound, UNPROVEN_BOUND), now)

    def go_on(self, now: float) -> None:
        """Note that a pause is over, in which nothing could complete."""
        self._completed_at = now
        self._start_again(self.bound, now)

    def _start_again(self, bound: int, now: float) -> None:
        self.bound = bound
        self._rounds.clear()
        self._fitting = 0
        self._look_anew()
        self._begin_round(now)

    def _look_anew(self) -> None:
        self._looks = 0
        # Most tuples per place in the fullest bolt, for each tuple in flight.
        self._fullest = 0.0

    def _begin_round(self, now: float) -> None:
        self._began = now
        self._done, self._total_s = 0, 0.0
        self._most = LARGEST_BOUND

    def _count(self, count: int, total_s: float, now: float) -> None:
        self._done += count
        self._total_s += total_s
        is_full = self._done >= self.bound and now > self._began
        if is_full and not self._fixed and now - self._reached_at <= _GAP_S:
            self._end_round(now)

    def _end_round(self, now: float) -> None:
        latency_s, most = self._total_s / self._done, self._most
        self._patience_s = self._silent_s
        self._rounds.append((self._done, now - self._began))
        self._begin_round(now)
        rate = self._rate()
        quick_s = self._quick_s * min(1.0, rate / _QUICK_FROM, _QUICK_TO / rate)
        target_s = max(self._short_s, quick_s, min(self._long_s, self._few / rate))
        self._follow_base(latency_s, target_s, now)
        self._draining -= 1
        if self._draining >= 0:
            return
        wanted = ceil(rate * max(target_s, min(_GAIN * self._base_s, self._timeout_s / 2)))
        wanted = max(wanted, self._fitting if self._is_slow(latency_s) else self._enough)
        bound = self.bound
        if bound < wanted:
            faster = 2 * bound
            if self._slow:
                faster = min(faster, max(self._threshold, bound + max(1, bound // 8)))
            self.bound = max(bound, min(faster, wanted, most))
            self._threshold = max(self._threshold, self.bound)
        elif latency_s > target_s and most == LARGEST_BOUND:
            self.bound = max(1, wanted, bound // 2)

    def _is_slow(self, latency_s: float) -> bool:
        """Return True if tuples are too slow for one to wait; follow how many fit without."""
        self._slow = _GAIN * latency_s > self._enough_s
        if not self._slow:
            self._fitting = 0
            self._look_anew()
        elif self._looks >= _LOOKS:
            self._fitting = self._room(self._fullest)
            self._look_anew()
        return self._slow

    def _room(self, fullest: float) -> int:
        """Return how many tuples may be in flight without one that waits, from the tuples per place
        of the fullest bolt for each tuple in flight.
        """
        # Rounded, because 1 / (1 / 49) is less than 49.
        return int(round(1 / fullest, 6)) if fullest else 2 * self.bound

    def _rate(self) -> float:
        """Return the completions per second over the last rounds."""
        count = sum(done for done, _ in self._rounds)
        while count - self._rounds[0][0] >= _SAMPLE:
            count -= self._rounds.popleft()[0]
        return count / sum(seconds for _, seconds in self._rounds)

    def _follow_base(self, latency_s: float, target_s: float, now: float) -> None:
        """Track the smallest mean latency of a round; drain the queue at times to remeasure it."""
        if latency_s > max(self._base_s, target_s):
            if now - self._base_at <= max(_BASE_S, _BASE_ROUNDS * latency_s):
                return
            self._draining = 3
            self.bound = min(self.bound, max(self._places, int(_DRAIN * self.bound)))
        self._base_s, self._base_at = latency_s, now
