"""Number of executors that a topology wants, from its backlog and its work, and the orders that
lead there. Pure.

The algorithm is Little's law with the behaviour of Kubernetes' HorizontalPodAutoscaler:
docs/decisions/how-many-executors.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf

from tiercel.workers.control.presence import ExecutorReport

DEFAULT_TARGET_S = 60.0
# The HorizontalPodAutoscaler's tolerance. Downwards it is headroom, so that noise about a level
# that is just enough brings no executor back.
_TOLERANCE = 0.1
# Up to twice as many, or four more, per period: the default policy of the HorizontalPodAutoscaler,
# whose period is 15 s. Spark's own dynamic allocation doubles each second.
_PERIOD_S, _MORE = 5.0, 4
# Downwards only to the largest need of this part of the target time, or of the work of one
# message: the HorizontalPodAutoscaler's stabilisation window.
_WINDOW_PART = 1.0
# The arrival rate is a mean over this time at least. A few arrivals say little, so it is longer
# until it has this many, but not longer than this many times the work of one message.
_MEAN_S, _ARRIVALS, _MEAN_WORKS = 10.0, 60, 4
# The backlog is to be gone in this part of the target time, because executors come late. A backlog
# of long messages may take this many times the work of one message.
_AIM, _ROUNDS = 0.5, 2
# Executors that have not come for this long are refused. Pods on a new machine take two minutes.
_REFUSED_S = 150.0
# Executors that end sooner by themselves die at once. After this many in a row none is replaced for
# a while that doubles up to a bound.
_SHORT_LIFE_S, _SHORT_LIVES = 30.0, 3
_FIRST_HOLD_S, _LONGEST_HOLD_S = 10.0, 160.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorRange:
    """The least and the most executors that an operator allows, and the time for a backlog."""

    least: int
    most: int
    # Time in which the messages that wait should be done.
    target_s: float = DEFAULT_TARGET_S

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"there is no range {self.least}..{self.most}")
        if not 0 < self.target_s < inf:
            raise ValueError("the time for a backlog must be more than 0 seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One look at a topology. It counts messages; one message may be many tuples."""

    # Seconds on a monotonic clock.
    now: float
    # Messages that wait, that are in execution, and that were done since any fixed moment.
    waiting: int
    executing: int
    done: int
    # Slot-seconds that one message takes; 0 while it is unknown.
    work_s: float
    # Executors that Spark has, and the slots of each.
    present: int
    slots: int = 1
    # Slots that can work at once: limits and numbers of tasks allow no more.
    useful: float = inf


class Scaler:
    """Decides for one topology. For one thread.

    By Little's law, arriving messages keep ``rate * work_s`` slots busy. Messages that wait need
    ``waiting * work_s / soon_s`` more to be done soon: within half of the target time, because
    executors come late, or within twice the work of one message if that is longer.

    * Up at once if messages wait and the need is more than a tenth above what was wanted: to at
      most twice as many executors, or four more, per five seconds.
    * Down to the largest need of the last target time, or of the work of one message if longer,
      plus a tenth.
    * Never above the slots that can work at once, and never outside the operator's range.

    The number depends on the work and not on the executors that Spark has, so executors that die
    or that a quota refuses do not move it up and down.
    """

    def __init__(self, range_: ExecutorRange) -> None:
        self._range = range_
        self._wanted = range_.least
        self._rate = _Rate()
        # The number at the beginning of a period.
        self._period = (-inf, self._wanted)
        # Falling needs of the window, each with its time.
        self._needs: deque[tuple[float, int]] = deque()
        # When executors were first missing, and how many Spark had then.
        self._missing = (inf, 0)

    def look(self, seen: Observation) -> ExecutorReport:
        """Return the decision after one more look; called about once per second."""
        rate = self._rate.after(seen)
        need = self._need(seen, rate)
        lowest = self._lowest(seen, ceil(need * (1 + _TOLERANCE) - 1e-9))
        if seen.now - self._period[0] >= _PERIOD_S:
            self._period = seen.now, self._wanted
        before = self._wanted
        if seen.waiting and need > before * (1 + _TOLERANCE):
            base = self._period[1]
            self._wanted = max(before, min(ceil(need), max(2 * base, base + _MORE)))
        elif lowest < before:
            self._wanted = lowest
        range_ = self._range
        self._wanted = max(range_.least, min(self._wanted, self._useful(seen)))
        return ExecutorReport(
            wanted=self._wanted,
            present=seen.present,
            why=self._why(seen, rate * seen.work_s),
            refused=self._refused(seen),
        )

    def _need(self, seen: Observation, rate: float) -> float:
        """Return the executors that keep up with arrivals and reduce the backlog in time."""
        soon_s = max(_AIM * self._range.target_s, _ROUNDS * seen.work_s)
        slots = (rate + seen.waiting / soon_s) * seen.work_s
        return min(slots, seen.waiting + seen.executing) / seen.slots

    def _lowest(self, seen: Observation, need: int) -> int:
        """Return the largest need of the window: going below it might have to be undone."""
        needs = self._needs
        while needs and needs[-1][1] <= need:
            needs.pop()
        needs.append((seen.now, need))
        window_s = max(_WINDOW_PART * self._range.target_s, seen.work_s)
        while seen.now - needs[0][0] > window_s:
            needs.popleft()
        return needs[0][1]

    def _useful(self, seen: Observation) -> int:
        """Return the executors that limits and numbers of tasks let work, at most the range."""
        most = self._range.most
        return most if seen.useful == inf else min(most, max(1, ceil(seen.useful / seen.slots)))

    def _why(self, seen: Observation, busy: float) -> str:
        if self._wanted == self._useful(seen) < self._range.most:
            return f"limits and tasks allow {seen.useful:.0f} slots to work"
        work = f"{seen.waiting} waiting, {seen.work_s:.3g} s each"
        arriving = f"arrivals keep {busy:.1f} slots busy"
        if self._wanted == self._range.most:
            return f"the most allowed: {work}, {arriving}"
        if not seen.waiting and self._wanted == self._range.least:
            return f"the least allowed: nothing waits, {arriving}"
        return f"{work}, {arriving}"

    def _refused(self, seen: Observation) -> int:
        """Return the missing executors, if none has come for a long time."""
        lack = self._wanted - seen.present
        if lack <= 0:
            self._missing = (inf, 0)
            return 0
        since, had = self._missing
        if since == inf or seen.present > had:
            self._missing = (seen.now, seen.present)
            return 0
        return lack if seen.now - since >= _REFUSED_S else 0


class _Rate:
    """The messages per second that arrive, as an exponential mean without a bias to zero."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._weight = 0.0
        # Time and number of messages of the last look.
        self._last: tuple[float, int] | None = None

    def after(self, seen: Observation) -> float:
        """Return the rate after one more look.

        Messages that vanish, for example with a purged queue, are no arrivals.
        """
        count = seen.waiting + seen.executing + seen.done
        last, self._last = self._last, (seen.now, count)
        if last is None or seen.now <= last[0]:
            return self._mean / self._weight if self._weight else 0.0
        seconds = seen.now - last[0]
        came = max(0, count - last[1]) / seconds
        enough_s = _ARRIVALS / max(self._mean, came) if came else inf
        kept = exp(-seconds / max(_MEAN_S, min(_MEAN_WORKS * seen.work_s, enough_s)))
        self._mean = kept * self._mean + (1 - kept) * came
        self._weight = kept * self._weight + (1 - kept)
        return self._mean / self._weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Present:
    """One live executor of Spark, and its part in the current run."""

    id: str
    # Number of tasks of the run's own, which only a new run can move.
    own: int = 0
    # Tasks that it got when it joined.
    extra: tuple[int, ...] = ()
    # It executes no tuple, and has claimed none.
    idle: bool = False
    # It is asked to leave: its tasks take nothing more, and nothing new starts on it.
    retiring: bool = False

    @property
    def is_empty(self) -> bool:
        """True if nothing runs on it, and nothing will."""
        return self.retiring and self.idle and not self.own and not self.extra


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetOrders:
    """The next orders to Spark and to executors."""

    # Executors that Spark should have.
    total: int
    # Executors that should finish their tuples and leave.
    retire: tuple[str, ...] = ()
    # Executors that have left and did not end by themselves.
    end: tuple[str, ...] = ()


def orders(wanted: int, most: int, found: Sequence[Present]) -> FleetOrders:
    """Return the orders that lead to ``wanted`` executors.

    Idle executors leave first, then the newest. Those with the run's own tasks stay. Spark counts
    an executor until it is gone, so it starts none in the place of one that leaves, and there are
    never more than ``most`` by our orders.

    >>> quiet, busy = (Present(id=id, extra=(1,), idle=id == "1") for id in "12")
    >>> orders(1, 4, [quiet, busy])
    FleetOrders(total=1, retire=('1',), end=())
    >>> orders(1, 4, [Present(id="1", idle=True, retiring=True), busy])
    FleetOrders(total=1, retire=(), end=('1',))
    """
    staying = [one for one in found if not one.retiring]
    movable = sorted(
        (one for one in staying if not one.own),
        key=lambda one: (not one.idle, -int(one.id) if one.id.isdecimal() else 0),
    )
    retire = tuple(one.id for one in movable[: max(0, len(staying) - wanted)])
    return FleetOrders(
        total=min(most, max(wanted, len(staying) - len(retire))),
        retire=retire,
        end=tuple(one.id for one in found if one.is_empty),
    )


class Lives:
    """Notices executors that come and die at once. For one thread."""

    def __init__(self) -> None:
        self._came: dict[str, float] = {}
        self._short = 0
        # When the last of the short lives ended.
        self._died = -inf
        self._hold_s = 0.0
        self._until = -inf

    def held(self, now: float, found: Sequence[Present], left: Collection[str]) -> bool:
        """Return True while no executor should replace the dead ones.

        ``left`` names the executors that leave by our orders. One that lives long ends the doubt.
        """
        ids = {one.id for one in found}
        for gone in self._came.keys() - ids:
            came = self._came.pop(gone)
            # Executors that a lost machine takes along at the same time are one death.
            if now - came < _SHORT_LIFE_S and came >= self._died and gone not in left:
                self._short += 1
                self._died = now
        for come in ids - self._came.keys():
            self._came[come] = now
        if self._short >= _SHORT_LIVES:
            self._short = 0
            self._hold_s = min(_LONGEST_HOLD_S, 2 * self._hold_s or _FIRST_HOLD_S)
            self._until = now + self._hold_s
        elif now >= self._until and self._lived(now):
            self._short, self._hold_s = 0, 0.0
        return now < self._until

    def _lived(self, now: float) -> bool:
        """Return True if an executor that came after the last short life has lived long."""
        later = [came for came in self._came.values() if came >= self._died]
        return bool(later) and now - min(later) >= _SHORT_LIFE_S
