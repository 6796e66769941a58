"""One step of a windowed bolt: the calls of ``execute`` and their accumulators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import gcd
from typing import Any, cast

import numpy as np

from tiercel.acker.inbox.contract import moment
from tiercel.acker.metrics.contract import WINDOWS_LATE, WINDOWS_REFUSED
from tiercel.queues.retry import RetryPolicy
from tiercel.spark_jobs.bolts.verdicts import GivenBack, Reject, RetryLater, Verdict
from tiercel.spark_jobs.bolts.windowed_bolt import (
    AggregatingBolt,
    Session,
    Sliding,
    TupleWindow,
    WindowedBolt,
)
from tiercel.spark_jobs.emitting.fold import departures
from tiercel.spark_jobs.errors import check_result
from tiercel.spark_jobs.kinds.windows.assigners import Closing, WindowId
from tiercel.spark_jobs.kinds.windows.record import WindowRecord, WindowRecorder
from tiercel.spark_jobs.kinds.windows.rows import (
    AHEAD,
    LATE,
    NULL,
    OVERDUE,
    HeldRows,
    Longs,
    Mask,
    micros,
)
from tiercel.spark_jobs.reasons import raised
from tiercel.spark_jobs.running.step import Execution, Step
from tiercel.spark_jobs.suspects.book import REASON
from tiercel.spark_jobs.suspects.notes import ExecutionNotes

_OVERDUE = "its window did not fill before the broker would have taken its message back"

# Rows that a bolt failed to add, with reason and verdict.
Unfit = dict[int, tuple[str, Verdict | None]]


class Accumulators:
    """The accumulators of one task of an ``AggregatingBolt``.

    Windows that overlap share those of one pane each: the time between two beginnings of windows.
    """

    def __init__(self, window: Sliding | Session) -> None:
        self._pane_us = 0
        length, slide = getattr(window, "length", None), getattr(window, "slide", None)
        if isinstance(length, timedelta) and isinstance(slide, timedelta) and slide < length:
            self._pane_us = gcd(micros(length), micros(slide))
        # By key and beginning: the rows that it has, as entries and rows, and the accumulator.
        self._panes: dict[tuple[int, int], tuple[bytes, Any]] = {}

    def missing(self, held: HeldRows, one: Closing) -> Longs:
        """Return the rows of a window that no kept accumulator has."""
        if not self._panes:
            return one.rows
        begins = held["time"][one.rows] // self._pane_us
        known = [at for at in np.unique(begins).tolist() if (one.key, at) in self._panes]
        return one.rows[~np.isin(begins, known)]

    def of(
        self, bolt: AggregatingBolt, record: WindowRecord, held: HeldRows, one: Closing, rows: Longs
    ) -> tuple[Any, Unfit]:
        """Return the accumulator of a window; ``rows`` of the step belong to the rows of it."""
        unfit: Unfit = {}
        if not self._pane_us:
            return self._added(bolt, record, rows, unfit), unfit
        begins = held["time"][one.rows] // self._pane_us
        ends = np.flatnonzero(np.diff(begins, append=begins[-1] + 1)) + 1
        accumulator = bolt.create()
        first = 0
        for end in ends.tolist():
            pane, part = one.rows[first:end], rows[first:end]
            name = one.key, int(begins[first])
            content = held["entry"][pane].tobytes() + held["row"][pane].tobytes()
            known = self._panes.get(name)
            if known is None or known[0] != content:
                fit = len(unfit)
                known = content, self._added(bolt, record, part, unfit)
                if len(unfit) == fit:
                    self._panes[name] = known
            accumulator = bolt.merge(accumulator, known[1])
            if accumulator is known[1]:
                # The next merge may change it, and later windows need it.
                accumulator = deepcopy(accumulator)
            first = end
        return accumulator, unfit

    def forget(self, before: int) -> None:
        """Forget the panes of windows that have closed, given the beginning of the next one."""
        if self._panes:
            last = before // self._pane_us
            self._panes = {name: kept for name, kept in self._panes.items() if name[1] >= last}

    def renumber(self) -> None:
        """Forget all panes: keys have new numbers."""
        self._panes.clear()

    @staticmethod
    def _added(bolt: AggregatingBolt, record: WindowRecord, rows: Longs, unfit: Unfit) -> Any:
        accumulator = bolt.create()
        for tup in record.make(rows):
            try:
                added = bolt.add(accumulator, tup)
                if added is None and accumulator is not None:
                    raise TypeError(
                        f"{record.component!r}: add returned None: return the accumulator"
                    )
                accumulator = added
            except raised() as error:
                unfit[tup.row] = record.blame(error)
        return accumulator


class WindowCalls:
    """The calls of a windowed bolt in one step."""

    def __init__(
        self,
        bolt: WindowedBolt,
        record: WindowRecord,
        held: HeldRows,
        rows: Longs,
        accumulators: Accumulators,
    ) -> None:
        """``rows`` are the step's rows by their indices in ``held``, ascending."""
        self._bolt = bolt
        self._record = record
        self._held = held
        self._accumulators = accumulators
        # The number in the step of each of its rows; undefined for other rows.
        self._number_of = np.empty(held.size, np.int64)
        self._number_of[rows] = np.arange(len(rows))

    def expect(self, closings: Sequence[Closing]) -> None:
        """Note the windows for which ``close`` will be called, in turn."""
        if isinstance(self._bolt, AggregatingBolt):
            self._record.expect(
                self._number_of[self._accumulators.missing(self._held, one)] for one in closings
            )

    def close(self, one: Closing, key: Any, notes: ExecutionNotes | None) -> BaseException | None:
        """Call the bolt for a window; return the error that it raised, if any.

        ``notes`` names the window before the call, to find one that kills the process.
        """
        record = self._record
        places = self._number_of[one.rows]
        stays = np.ones(len(places), bool)
        if record.reasons:
            stays = ~np.isin(places, list(record.reasons))
            if not stays.any():
                return None
        if notes is not None:
            identity, roots = record.named(places)
            if not notes.repeats(record, identity, roots):
                return Reject(REASON)
        record.signs += 1
        try:
            if isinstance(self._bolt, AggregatingBolt):
                self._aggregate(self._bolt, one, key, places, stays)
            else:
                collector = WindowRecorder(record, places[stays], one.numbers[stays])
                collector.during(lambda: self._call(one, key, places, stays, collector))
        except raised() as error:
            return error
        return None

    def _aggregate(
        self, bolt: AggregatingBolt, one: Closing, key: Any, places: Longs, stays: Mask
    ) -> None:
        """Pass the accumulator of a window to ``result``; a tuple that cannot be added fails."""
        record = self._record
        kept = one if stays.all() else replace(one, rows=one.rows[stays])
        rows = places[stays]
        accumulator, unfit = self._accumulators.of(bolt, record, self._held, kept, rows)
        fit = ~np.isin(rows, list(unfit))
        if fit.any():
            window = TupleWindow(
                key=key, start=moment(one.start), end=moment(one.end), count=int(fit.sum())
            )
            collector = WindowRecorder(record, rows[fit], one.numbers[stays][fit])
            collector.during(lambda: bolt.result(accumulator, window, collector))
        for row, failing in unfit.items():
            record.note(row, *failing)

    def _call(
        self, one: Closing, key: Any, places: Longs, stays: Mask, collector: WindowRecorder
    ) -> None:
        made = self._record.made
        expired = self._number_of[one.expired]
        self._record.lend(np.concatenate((places[stays], expired)), made.__getitem__)
        tuples = [made[place] for place in places[stays].tolist()]
        window = TupleWindow(
            key=key,
            start=moment(one.start),
            end=moment(one.end),
            count=len(tuples),
            tuples=tuples,
            new=[made[place] for place in places[stays & one.new].tolist()],
            expired=[made[at] for at in expired.tolist()],
        )
        execute: Callable[..., object] = self._bolt.execute
        if (result := execute(window, collector)) is not None:
            check_result(result, execute)

    def let_leave(self, settings: WindowedBolt, status: Longs, times: Longs) -> None:
        """Execute rows that are in no window: reject them, emit them as late, or ack them."""
        record = self._record
        record.leaving = np.arange(len(status))
        late = np.flatnonzero(status == LATE)
        if settings.late_stream and late.size:
            try:
                self._emit_late(late, settings.late_stream)
            except raised() as error:
                failing = record.blame(error)
                for row in late.tolist():
                    record.note(row, *failing)
        unfit = int(np.isin(status, (NULL, AHEAD)).sum())
        record.more_counts = {WINDOWS_LATE: len(late), WINDOWS_REFUSED: unfit}
        for row in np.flatnonzero(status == OVERDUE).tolist():
            record.note(row, *record.failing(GivenBack(0, _OVERDUE)))
        refused = (NULL, AHEAD) if settings.late_stream else (NULL, AHEAD, LATE)
        for row in np.flatnonzero(np.isin(status, refused)).tolist():
            reason = why_late(settings, int(status[row]), int(times[row]))
            record.report(reason)
            record.note(row, reason, Reject(reason))

    def _emit_late(self, rows: Longs, stream: str) -> None:
        """Emit late rows, which have emitted nothing before."""
        record = self._record
        collector = WindowRecorder(record, rows, np.zeros(len(rows), np.int64))
        names = record.outputs.streams[stream].schema.names
        for row in rows.tolist():
            tup = record.made[row]
            collector.emit([tup[name] for name in names], stream, anchors=tup)
        collector.commit()


def why_late(settings: WindowedBolt, status: int, time_us: int) -> str:
    """Return why a tuple is rejected."""
    field = settings.timestamp_field
    if status == NULL:
        return f"its timestamp {field!r} is null"
    time = moment(time_us)
    if status == AHEAD:
        return (
            f"its timestamp {field!r} is {time:%Y-%m-%d %H:%M:%S}, in the future by more than "
            f"max_ahead ({settings.max_ahead}): look at the clock of its sender, and at "
            f"timestamp_unit ({settings.timestamp_unit!r})"
        )
    return (
        f"late: its timestamp {field!r} is {time:%Y-%m-%d %H:%M:%S.%f}, and its last window has "
        f"closed: raise lag, or idle if its source may be silent for longer than {settings.idle}, "
        "or declare a late_stream"
    )


class FailedWindows:
    """The windows of one task that wait for their next attempt."""

    def __init__(self, policy: RetryPolicy, limit: int, clock: Callable[[], float]) -> None:
        """``limit`` is the number of attempts."""
        self.limit = limit
        self._policy = policy
        self._clock = clock
        # Attempts so far, and the time of the next one.
        self._tried: dict[WindowId, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._tried)

    @property
    def due_at(self) -> list[float]:
        """Times of the next attempts."""
        return [due_at for _, due_at in self._tried.values()]

    @property
    def waiting(self) -> frozenset[WindowId]:
        """Windows whose next attempt is not due."""
        now = self._clock()
        return frozenset(id_ for id_, (_, due_at) in self._tried.items() if due_at > now)

    def may_go_on(self, id_: WindowId, error: BaseException) -> bool:
        """Return True if a window is tried again after this error."""
        attempts, _ = self._tried.get(id_, (0, 0.0))
        return attempts + 1 < self.limit and not isinstance(error, Reject)

    def note(self, closed: Iterable[WindowId], failed: Mapping[WindowId, BaseException]) -> None:
        """Note the outcome of a step: windows that are done, and windows that are tried again."""
        for id_ in closed:
            self._tried.pop(id_, None)
        for id_, error in failed.items():
            attempts = self._tried.get(id_, (0, 0.0))[0] + 1
            asked = isinstance(error, RetryLater)
            wait_s = error.seconds if isinstance(error, RetryLater) else self.back_off_s(attempts)
            self._tried[id_] = attempts - asked, self._clock() + wait_s

    def keep(self, windows: AbstractSet[WindowId]) -> None:
        """Forget all other windows: they do not exist any more."""
        self._tried = {id_: self._tried[id_] for id_ in windows}

    def back_off_s(self, attempts: int) -> float:
        """Return the wait after this number of attempts."""
        first, longest = self._policy.first, self._policy.longest
        wait_s: float = first.total_seconds() * 2.0 ** min(attempts - 1, 30)
        return min(wait_s, longest.total_seconds())


def execution_of(execute: Callable[[WindowedBolt, WindowRecord], None]) -> Execution:
    """Return the ``Execution`` of a task whose steps are executed by this function."""
    return Execution(
        record=WindowRecord,
        execute=partial(_execute, execute),
        departures=partial(departures, basic=False, batch=True),
        at_once=True,
    )


def _execute(
    execute: Callable[[WindowedBolt, WindowRecord], None], bolt: WindowedBolt, step: Step
) -> bool:
    record = cast("WindowRecord", step.record)
    began = time.perf_counter_ns()
    execute(bolt, record)
    record.execute_ns += time.perf_counter_ns() - began
    return not record.aborted
