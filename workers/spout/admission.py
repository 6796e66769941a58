"""Bound on the spout tuples that a task may have in flight: a fixed number, or one that follows
what can be finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from tiercel.workers.spout.admission_limits import Limits
from tiercel.workers.spout.admission_round import Round
from tiercel.workers.spout.aside import Aside
from tiercel.workers.spout.completions import Completions
from tiercel.workers.spout.growth import Growth
from tiercel.workers.spout.peaks import Peaks
from tiercel.workers.spout.silence import Silence

# Two tuples of ten seconds each are finished by one task within the default timeout;
# sixteen are not.
FIRST_BOUND = 2
UNPROVEN_BOUND = 16
LARGEST_BOUND = 200_000
_LARGEST_STEP = 8
_PROBE = 1.5
_HELD_S = 60.0
_HELD_ROUNDS = 20
_IN_VAIN = 0.7


class Admission:
    """The bound and the outcomes by which it is judged, in rounds.

    One thread; times are seconds on one monotonic clock.

    A round is what is emitted under one bound that is reached: as many tuples as it allows in
    flight, or a few more. It is over when nearly all of them are done: those that are done first
    say nothing about a task that is slower than the others.

    * A tuple that leaves without an outcome (given back, timed out, failed by a bolt) leaves its
      round, which is judged by the others: no round waits for an outcome that never comes. Where
      fewer than 16 may be in flight a tuple that a bolt failed is done, and lets the bound grow to
      16: else messages that always fail would go by two at a time.
    * After a round of less than ``quick_s`` the bound grows, eightfold at most.
    * Where they take longer, by themselves or because they wait, a bound half as large again is
      tried. It stays if the latency grew much less than the bound did, which shows free tasks; else
      it goes back for a minute at least.
    * It shrinks at once, to what was completed in the last seconds, on a sign that more is in
      flight than can be finished: a timeout, a late outcome, a tree above ``slow_s``, a pending
      tuple of that age. One standstill is one sign: what was emitted before a change tells of the
      bound before it.
    * A tuple that was overtaken by much younger ones is slow by itself. It counts only beside
      others like it, once they hold a tenth of the bound.
    * While nothing completes at all a bound below 16 does not shrink, but grows to 16: fewer would
      not help, and bolts that hold tuples may be waiting for others. If these time out as well the
      tasks are busy with what timed out before: it falls to 1, for twice as long.
    * It grows at once where it was not reached for a while, and is now because some tuples wait
      behind one that takes long: that must not hold up what is for other tasks. In flight are a few
      seconds of work at most then.
    * What was not reached for a minute is forgotten: the bound falls to twice what was in flight.
    """

    def __init__(self, *, bound: int, fixed: bool = False, limits: Limits | None = None) -> None:
        self._bound = bound
        self._fixed = fixed
        self._limits = limits or Limits()
        self._changed_at = float("-inf")
        self._round = Round()
        self._slow = 0
        self._reached = False
        # The bound before the last growth, and its mean latency.
        self._before: tuple[int, float] | None = None
        self._held_until = float("-inf")
        self._silence = Silence(self._limits.silent_s)
        self._growth = Growth(UNPROVEN_BOUND, self._limits.cheaper_s)
        self._completions = Completions(2 * self._limits.reserve_s)
        self._aside = Aside()
        self._peaks = Peaks()

    @classmethod
    def for_topology(
        cls, max_spout_pending: int | None, message_timeout: timedelta | None, depth: int = 1
    ) -> Admission:
        """A fixed bound if the topology sets one, else one that adapts to its bolts in a row."""
        if max_spout_pending is not None:
            return cls(bound=max_spout_pending, fixed=True)
        return cls(bound=FIRST_BOUND, limits=Limits.within(message_timeout, depth))

    @property
    def bound(self) -> int:
        """Tuples that may be in flight now."""
        return self._bound + self._aside.room

    @property
    def fixed(self) -> bool:
        return self._fixed

    @property
    def slow_s(self) -> float:
        """The age from which on a pending tuple is a sign."""
        return self._limits.slow_s

    @property
    def changed_at(self) -> float:
        """Time of the last change of the bound."""
        return self._changed_at

    def emitted(self, count: int, now: float) -> None:
        """Tuples were emitted."""
        if self._fixed or not count:
            return
        self._aside.emitted(now)
        if not self._is_closed:
            self._round.emitted(count, now)

    def reached(self, now: float, oldest_at: float) -> None:
        """The bound kept a tuple back; one that is never reached says nothing about a larger one.

        The oldest in flight was emitted at ``oldest_at``.
        """
        self._reached = True
        self._round.reached = True
        if self._aside.reached(oldest_at, now) and not self._fixed:
            if self._aside.calm:
                most = self._completions.per_second_so_far(now) * self._limits.calm_s
            else:
                most = self._completions.per_second(now) * self._limits.busy_s
            if self.bound < max(UNPROVEN_BOUND, most):
                self._aside.enlarge(max(1, self.bound // 2), now)

    def completed(
        self,
        emitted: Mapping[float, int],
        now: float,
        counted_from: Mapping[float, int] | None = None,
    ) -> None:
        """Trees completed, or wait for a limit now, which is as good: how many of those that were
        emitted at each time.

        ``counted_from``: the same by when their timeout began, if bolts began it again.
        Such a tuple is slow because its bolt wants it so, and is no sign; a reason to grow
        it is not either.
        """
        if self._fixed or not emitted:
            return
        self._completions.add(sum(emitted.values()), now)
        self._aside.completed(min(emitted), max(emitted), now)
        for then, count in emitted.items():
            self._round.completed(count, then, now, not_before=self._changed_at)
        for then, count in (counted_from or emitted).items():
            if now - then > self._limits.slow_s:
                self.overdue(count, then, now)
        if self._is_closed:
            self._judge(now)

    def left(self, emitted: Mapping[float, int], now: float) -> None:
        """Tuples left without an outcome, and none will come: they were given back, or timed out.

        As for ``completed``; a timeout is a sign besides, which ``overdue`` takes.
        """
        if self._fixed:
            return
        for then, count in emitted.items():
            self._round.left(count, then, not_before=self._changed_at)
        if self._is_closed:
            self._judge(now)

    def failed(self, emitted_at: float, now: float) -> None:
        """A bolt failed a tuple. How long that took says little of the work, and nothing where
        many are in flight: a bolt whose database is away fails faster than it works.
        """
        if self._bound >= UNPROVEN_BOUND:
            self.left({emitted_at: 1}, now)
        elif not self._fixed:
            self._round.completed(1, emitted_at, now, not_before=self._changed_at)
            self._round.failed = True
            self._aside.completed(emitted_at, emitted_at, now)
            if self._is_closed:
                self._judge(now)

    def overdue(self, count: int, emitted_at: float, now: float) -> None:
        """Tuples emitted at this time or before timed out, or their outcomes came too late."""
        if self._fixed or emitted_at < self._changed_at:
            return
        self._slow += count
        self._weigh(self._slow, emitted_at, now)
        if self._changed_at < now and not self._completions.per_second(now):
            if self._silence.timed_out():
                self._change(1, now)
            else:
                # No round ends with those.
                self._begin_round()

    def look(self, now: float, in_flight: int, old: int, oldest_at: float) -> None:
        """Look at what is in flight; call it about once a second.

        ``old`` of it were emitted under this bound and are as old as ``slow_s``, the oldest of all
        at ``oldest_at``.
        """
        if self._fixed:
            return
        self._aside.look(oldest_at, now, is_used=in_flight > self._bound)
        self._forget(now, in_flight)
        if old:
            self._weigh(old, max(oldest_at, self._changed_at), now)
        silent_since = max(self._completions.last_at, self._changed_at, oldest_at)
        if in_flight >= self._bound and self._silence.is_long(now - silent_since):
            if self._bound < UNPROVEN_BOUND:
                self._change(UNPROVEN_BOUND, now)
                self._silence.tried()
            elif self._limits.slow_s == float("inf"):
                self._change(min(LARGEST_BOUND, _LARGEST_STEP * self._bound), now)

    @property
    def _is_closed(self) -> bool:
        return self._round.reached and self._round.size >= self._bound

    def _judge(self, now: float) -> None:
        """Draw the conclusion if the round is over."""
        round_ = self._round
        if round_.judged <= 0:
            # All of its tuples left: it says nothing.
            self._begin_round()
            return
        quick_s = self._limits.quick_s(self._bound)
        latency_s = round_.mean_s(now)
        largest_step: float = _LARGEST_STEP
        if round_.lacks_many:
            # One tuple may be slow by itself, or because of its task, which would get some of what
            # is emitted next.
            largest_step = 2
            if round_.missing > 1 or round_.judged == 1 or round_.worst_s >= quick_s:
                return
            latency_s = round_.latency_s / round_.done
        self._begin_round()
        if self._aside.room:
            # It had tuples that were stuck.
            return
        if round_.failed:
            largest_step = min(largest_step, UNPROVEN_BOUND / self._bound)
        if round_.worst_s < quick_s:
            self._go_on(
                min(largest_step, self._limits.step(self._bound, round_.worst_s)), latency_s, now
            )
        elif round_.failed:
            return
        elif latency_s < quick_s and _PROBE * round_.worst_s < self._limits.probed_s:
            # Most are quick, and the slow ones have time enough, also with so many
            # more before them.
            self._go_on(_PROBE, latency_s, now)
        elif latency_s < self._limits.probed_s and now >= self._held_until:
            self._probe(latency_s, now)

    def _go_on(self, step: float, latency_s: float, now: float) -> None:
        """Trees are quick, with room for so many times as many."""
        self._silence.ended()
        bound = min(LARGEST_BOUND, self._growth.judged(self._bound, step, latency_s, now))
        if bound != self._bound:
            before = self._bound
            self._change(bound, now, quick=True)
            self._before = (before, latency_s) if bound > before else None

    def _probe(self, latency_s: float, now: float) -> None:
        """Try a larger bound, or take the last trial back."""
        if self._is_in_vain(latency_s):
            self._hold(latency_s, now)
            self._take_back(latency_s, now)
        else:
            self._grow(_PROBE, latency_s, now)

    def _take_back(self, latency_s: float, now: float) -> None:
        """Keep so many in flight that what completes now takes as long as before
        the last growth.
        """
        if self._before is not None:
            bound, before_s = self._before
            self._change(max(bound, int(self._bound * before_s / latency_s)), now)

    def _is_in_vain(self, latency_s: float) -> bool:
        """Return True if the last growth made trees slower nearly in proportion:
        no task was free.
        """
        if self._before is None or self._before[0] >= self._bound:
            return False
        bound, before_s = self._before
        return latency_s > before_s * (1 + _IN_VAIN * (self._bound / bound - 1))

    def _weigh(self, slow: int, emitted_at: float, now: float) -> None:
        """Shrink, for so many tuples are slow, the oldest of them emitted at this time.

        Unless they are slow by themselves.
        """
        overtaken = self._aside.youngest > (emitted_at + now) / 2
        if overtaken and (slow < 2 or 10 * slow < self.bound):
            return
        per_second = self._completions.per_second(now)
        if self._before is not None and now - self._changed_at <= 2 * self._limits.slow_s:
            # The last growth was one too many, unless the work became slower as well.
            self._hold(now - emitted_at, now)
            self._change(
                max(1, min(self._before[0], int(3 * per_second * self._limits.reserve_s))), now
            )
        elif per_second:
            self._change(
                max(1, min(self._bound // 2, int(per_second * self._limits.reserve_s))), now
            )
        elif self._bound > UNPROVEN_BOUND:
            self._change(max(UNPROVEN_BOUND, self._bound // 4), now)

    def _hold(self, latency_s: float, now: float) -> None:
        self._held_until = now + max(_HELD_S, _HELD_ROUNDS * latency_s)

    def _grow(self, step: float, latency_s: float, now: float) -> None:
        bound = self._bound
        self._change(min(LARGEST_BOUND, max(bound + 1, int(bound * step))), now)
        self._before = bound, latency_s

    def _change(self, bound: int, now: float, *, quick: bool = False) -> None:
        if not quick:
            self._growth.forget()
        if bound < self._bound:
            self._aside.room = 0
        self._bound = bound
        self._changed_at = now
        self._before = None
        self._begin_round()

    def _begin_round(self) -> None:
        self._round = Round()
        self._slow = 0

    def _forget(self, now: float, in_flight: int) -> None:
        most = self._peaks.look(self._bound if self._reached else in_flight, now)
        self._reached = False
        if most is not None:
            self._bound = min(self._bound, max(UNPROVEN_BOUND, 2 * most))
