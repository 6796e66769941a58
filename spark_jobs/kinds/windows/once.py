"""``WindowedBolt.once``: each window emits its result once, also if messages are delivered again.

The state store has two kinds of marks of such a bolt (``spark_jobs.state.store``), which are
written with the step that closes a window:

* of the window: the run in which it closed, and its emissions;
* of each tuple that leaves with it: the digest of its message, and the name of the window. If the
  windows follow from the timestamp: their length and slide, which an upgrade may change.

A tuple that comes and has a mark is in no window. It repeats the emissions of its windows, anchored
to itself. The keys of these emissions are made of the window's name, so bolts behind with ``once``
recognise them. ``docs/decisions/windows-once.md`` says why this is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from tiercel.acker.ids import KEY_BYTES, said_by
from tiercel.acker.inbox.contract import Covered
from tiercel.acker.metrics.contract import ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE
from tiercel.queues.retry import RetryPolicy
from tiercel.spark_jobs.bolts.verdicts import Reject
from tiercel.spark_jobs.bolts.windowed_bolt import Sliding, WindowedBolt
from tiercel.spark_jobs.emitting.fold import join_keys
from tiercel.spark_jobs.errors import OtherMessageError
from tiercel.spark_jobs.kinds.windows.assigners import Closing, TimeWindows
from tiercel.spark_jobs.kinds.windows.backlog import REPEATS, WINDOWS, Place, StepPlan
from tiercel.spark_jobs.kinds.windows.record import WindowRecord, WindowRecorder, WindowResult
from tiercel.spark_jobs.kinds.windows.rows import DEAD, FOREVER, GOOD, LATE, MARKED, NEVER, Longs
from tiercel.spark_jobs.kinds.windows.step import (
    WindowCalls,
    why_late,
)
from tiercel.spark_jobs.kinds.windows.task import TaskWindows
from tiercel.spark_jobs.reasons import raised
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import OpenEntry, Share
from tiercel.spark_jobs.running.kind import Fetch, StepInput
from tiercel.spark_jobs.running.once import (
    OTHER_MESSAGE,
    UNKEYED,
    packed_as_plain,
    received_streams,
    there,
    unpack_emissions,
)
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.running.step import Done, Execution, Step
from tiercel.spark_jobs.suspects.notes import ExecutionNotes
from tiercel.spark_jobs.topology.windowing import Windowing

# Parts of a mark of a tuple, and of the mark of a window.
_CONTENT = slice(0, 16)
_WINDOW = slice(16, None)
_NAME_BYTES = 16
_RUN_BYTES = 8
# Bytes of a length and of a slide, up to 12 days in microseconds.
_SPAN_BYTES = 5
_NONE = bytes(KEY_BYTES)
_NOT_FOUND = (
    "it was counted in a window that has closed, whose result cannot be found and repeated: the "
    "key or the timestamp of the tuple has changed since"
)


@dataclass(kw_only=True, slots=True)
class _Fresh:
    """An entry whose rows are not looked up yet."""

    entry: OpenEntry
    columns: dict[str, Longs]
    before: Longs
    is_new: bool
    # The key of each row; zeros without one.
    keys: list[bytes]
    # Of marked rows whose windows the mark tells: names of windows, and their numbers.
    told: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class _Repeat:
    """The emissions of one window that are repeated, by rows, with the window's number for each."""

    packed: bytes
    rows: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


class _OnceCalls(WindowCalls):
    """Executes windows that have not closed before, and notes their emissions."""

    # Names a window; and the marks of windows that have closed before.
    name: Callable[[Closing], bytes]
    closed: Mapping[bytes, bytes]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # The windows that were executed.
        self.done: list[tuple[Closing, WindowResult]] = []

    def close(self, one: Closing, key: Any, notes: ExecutionNotes | None) -> BaseException | None:
        name = self.name(one)
        if name in self.closed:
            self._refuse(one)
            return None
        self._record.result = result = WindowResult(name=name)
        error = super().close(one, key, notes)
        self._record.result = None
        if error is None and result.called:
            self.done.append((one, result))
        return error

    def _refuse(self, one: Closing) -> None:
        """Reject the rows of a window that has closed before, if they are in no other."""
        window = self._bolt.window
        if isinstance(window, Sliding) and window.slide == window.length:
            places = self._number_of[one.rows].tolist()
            times = self._held["time"][one.rows].tolist()
            for place, time_us in zip(places, times, strict=True):
                reason = why_late(self._bolt, LATE, time_us)
                self._record.note(place, reason, Reject(reason))


class OnceWindows(TaskWindows):
    """``TaskWindows`` of a bolt with ``once``."""

    def __init__(
        self, around: Around, task: int, windowing: Windowing, policy: tuple[RetryPolicy, int]
    ) -> None:
        super().__init__(around, task, windowing, policy)
        self._fresh: list[_Fresh] = []
        # By the window's name, what the next step repeats; and why rows with a mark fail.
        self._repeats: dict[bytes, _Repeat] = {}
        self._refused: dict[int, Exception] = {}
        # Number of rows with a mark.
        self._marked = 0
        self._origin = f"{around.topology.name}\n{self._component}\n"
        # By key: the ends of the first and the last of windows that are known not to have closed.
        self._open: dict[int, tuple[int, int]] = {}
        self._run_id = blake2b(around.run.encode(), digest_size=_RUN_BYTES).digest()
        # The windows of a tuple follow from its timestamp.
        self._by_bounds = self._by_time and isinstance(self.windows, TimeWindows)
        self._spans = _pack_spans(cast("TimeWindows", self.windows)) if self._by_bounds else b""
        self._retention_s = int(windowing.bolt.once_retention.total_seconds())

    def execution(self) -> Execution:
        plain = super().execution()
        return replace(plain, execute=partial(self._begin, plain.execute), states=TaskStates)

    def _begin(self, execute: Callable[[Any, Step], bool], bolt: WindowedBolt, step: Step) -> bool:
        self._states = cast("TaskStates", step.states)
        return execute(bolt, step)

    @property
    def _time_windows(self) -> TimeWindows:
        return cast("TimeWindows", self.windows)

    def _renumber(self, keys: Mapping[int, int]) -> None:
        super()._renumber(keys)
        self._open = {keys[old]: ends for old, ends in self._open.items() if old in keys}

    # -- input -----------------------------------------------------------------------------------

    def _admit(
        self, entry: OpenEntry, columns: dict[str, Longs], before: Longs, *, is_new: bool
    ) -> None:
        """Have the rows looked up before they are put into windows."""
        keys = _keys_of(entry)
        self._fresh.append(
            _Fresh(entry=entry, columns=columns, before=before, is_new=is_new, keys=keys)
        )

    def _fetch_known(self, known: Place, fetch: Fetch) -> None:
        super()._fetch_known(known, fetch)
        self._look_up()

    def _look_up(self) -> None:
        """Look up the rows that came. Rows that an earlier attempt knew have no marks, and have
        repeated the emissions of closed windows.
        """
        fresh, self._fresh = self._fresh, []
        self.changes += len(fresh)
        names = [name for one in fresh if one.is_new for name in self._asks(one)]
        marks = self.recall(list(dict.fromkeys(names))) if names else {}
        if marks:
            marks |= self._told_by(marks, fresh)
        for one in fresh:
            self._admit_one(one, marks)

    def _told_by(self, marks: Mapping[bytes, bytes], fresh: Sequence[_Fresh]) -> dict[bytes, bytes]:
        """Note the windows that marks of rows tell; return the marks of these windows."""
        for one in fresh:
            for at, key in enumerate(one.keys if one.is_new else ()):
                told = marks[key][_WINDOW] if key in marks else b""
                if told not in (b"", self._spans):
                    one.told[at] = self._windows_told(told, one, at)
        names = [name for one in fresh for windows in one.told.values() for name, _ in windows]
        return self.recall(list(dict.fromkeys(names))) if names else {}

    def _windows_told(self, told: bytes, one: _Fresh, at: int) -> list[tuple[bytes, int]]:
        """Return the windows of a row by its mark: a name, or length and slide of earlier ones."""
        if len(told) == _NAME_BYTES:
            return [(told, 0)]
        windows, time = _unpack_spans(told), one.columns["time"][at]
        first, last = int(windows.first_end(time)), int(windows.last_end(time))
        ends = range(first, last + 1, windows.slide)
        named = self._names(windows, int(one.columns["key"][at]), ends)
        return [(name, (end - first) // windows.slide) for name, end in named]

    def _asks(self, one: _Fresh) -> Iterator[bytes]:
        """Yield the names of marks that tell about rows: of their keys, and of their windows."""
        yield from (key for key in one.keys if key != _NONE)
        if self._by_bounds:
            for key, last in set(self._windows_in(one)):
                yield from (name for name, _ in self._unknown(key, last))

    def _windows_in(self, one: _Fresh) -> Iterator[tuple[int, int]]:
        """Yield the key of each row, and the end of its last window."""
        last = self._time_windows.last_end(one.columns["time"]).tolist()
        return zip(one.columns["key"].tolist(), last, strict=True)

    def _names(
        self, windows: TimeWindows, key: int, ends: Iterable[int]
    ) -> list[tuple[bytes, int]]:
        """Return the names and ends of the windows of a key that end then."""
        value = self._origin + self.keys.text(key)
        return [(_name(value, end - windows.length, end), end) for end in ends]

    def _unknown(self, key: int, last: int) -> list[tuple[bytes, int]]:
        """Return the names and ends of windows of a row that may have closed, given the last end.

        It may be one window more: for a timestamp that is earlier by less than a slide.
        """
        windows = self._time_windows
        first = last - windows.length - bool(windows.length % windows.slide)
        lowest, highest = self._open.get(key, (FOREVER, NEVER))
        ends = range(last, first, -windows.slide)
        return self._names(windows, key, [end for end in ends if not lowest <= end <= highest])

    def _closed_of(
        self, key: int, last: int, marks: Mapping[bytes, bytes]
    ) -> list[tuple[bytes, int]]:
        """Return the names and ends of the closed windows of a row; note the others."""
        windows = self._time_windows
        closed = [(name, end) for name, end in self._unknown(key, last) if name in marks]
        first = max([end for _, end in closed], default=last - windows.length) + windows.slide
        if first > last:
            return closed
        lowest, highest = self._open.get(key, (first, last))
        if first <= highest + windows.slide and lowest <= last + windows.slide:
            self._open[key] = min(first, lowest), max(last, highest)
        elif last > highest:
            self._open[key] = first, last
        return closed

    def _admit_one(self, one: _Fresh, marks: Mapping[bytes, bytes]) -> None:
        status = one.columns["status"]
        found: dict[int, list[tuple[bytes, int]]] = {}
        refused: dict[int, Exception] = {}
        if one.is_new:
            marked = [at for at, key in enumerate(one.keys) if key in marks and status[at] == GOOD]
            status[marked] = MARKED
            if self._by_bounds:
                self._find_closed(one, marks, found)
            for at in marked:
                if at in one.told:
                    found[at] = [window for window in one.told[at] if window[0] in marks]
                if error := _why_refused(one, at, marks[one.keys[at]], found.get(at, ())):
                    refused[at] = error
        size = self.rows.size
        super()._admit(one.entry, one.columns, one.before, is_new=one.is_new)
        self._marked += int((status == MARKED).sum())
        self._others -= int((status == MARKED).sum())
        self._refused |= {size + at: error for at, error in refused.items()}
        for at, windows in found.items():
            for name, number in windows if at not in refused else ():
                packed = marks[name][_RUN_BYTES:]
                repeat = self._repeats.setdefault(name, _Repeat(packed=packed))
                repeat.rows.append(size + at)
                repeat.numbers.append(number)

    def _find_closed(
        self,
        one: _Fresh,
        marks: Mapping[bytes, bytes],
        found: dict[int, list[tuple[bytes, int]]],
    ) -> None:
        """Find the closed windows that rows repeat; a row that was in none of them is late if all
        of its windows have closed.
        """
        slide = self._time_windows.slide
        status, times = one.columns["status"], one.columns["time"]
        first = self._time_windows.first_end(times).tolist()
        seen: dict[tuple[int, int], list[tuple[bytes, int]]] = {}
        for at, place in enumerate(self._windows_in(one)):
            if status[at] not in (GOOD, MARKED):
                continue
            if place not in seen:
                seen[place] = self._closed_of(*place, marks)
            closed = [(name, end) for name, end in seen[place] if end >= first[at]]
            if not closed:
                continue
            if status[at] == GOOD and not self._copies.holds(one.keys[at]):
                if len(closed) == (place[1] - first[at]) // slide + 1:
                    status[at] = LATE
                    continue
                # Windows of this run that have closed did not have it.
                closed = [one for one in closed if not marks[one[0]].startswith(self._run_id)]
            found[at] = [(name, (end - first[at]) // slide) for name, end in closed]

    # -- steps -----------------------------------------------------------------------------------

    def next_step(self, *, must: bool) -> StepPlan | None:
        self.run = None
        self._look_up()
        if self._repeats or self._marked:
            if self._clock() >= self._rests_until:
                self.run = StepPlan(kind=REPEATS, rows=self._repeating())
            return self.run
        return super().next_step(must=must)

    def _repeating(self) -> Longs:
        """Return the rows that repeat emissions, or only leave."""
        held = [row for repeat in self._repeats.values() for row in repeat.rows]
        rows = np.zeros(self.rows.size, bool)
        rows[held] = True
        status = self.rows["status"]
        rows &= status == GOOD
        rows |= status == MARKED
        return np.flatnonzero(rows & self.rows.alive)

    def repeat(self, covered: Covered, fetch: Fetch) -> StepInput:
        found = super().repeat(covered, fetch)
        run = cast("StepPlan", self.run)
        if run.kind != REPEATS:
            return found
        run.rows = self._repeating()
        return StepInput(shares=self.shares(run.rows))

    def _remove(self, rows: Longs, *, with_windows: bool) -> None:
        super()._remove(rows, with_windows=with_windows)
        if cast("StepPlan", self.run).kind == REPEATS:
            self._forget()

    def _forget(self) -> None:
        """Forget the repeats, which have been made."""
        self._repeats.clear()
        self._refused.clear()
        self._marked = 0

    def conflicted(self, shares: Sequence[Share], done: Done) -> None:
        # The marks of the earlier attempt may stay.
        self._open.clear()
        super().conflicted(shares, done)

    def _drop(self, run: StepPlan) -> None:
        marked = run.rows[self.rows["status"][run.rows] == MARKED]
        marked = marked[self.rows.alive[marked]]
        self.rows["status"][marked] = DEAD
        self._others += len(marked)
        self._forget()
        super()._drop(replace(run, rows=np.setdiff1d(run.rows, marked)))

    # -- execution -------------------------------------------------------------------------------

    def execute(self, bolt: WindowedBolt, record: WindowRecord) -> None:
        run = cast("StepPlan", self.run)
        if run.kind == REPEATS:
            self._repeat_emissions(record, run)
            return
        super().execute(bolt, record)
        if run.kind == WINDOWS:
            self._mark(record)

    def _calls(self, bolt: WindowedBolt, record: WindowRecord, rows: Longs) -> WindowCalls:
        run = cast("StepPlan", self.run)
        closed: Mapping[bytes, bytes] = {}
        self._keys = join_keys([chunk.lineage for chunk in record.chunks])
        if run.kind == WINDOWS:
            self._state = self._states.opened(self._task)
            names = [self._name_of(one) for one in run.plan.closings] if self._by_bounds else []
            closed = self._state.recall(names) if names else {}
        calls = _OnceCalls(bolt, record, self.rows, rows, self._accumulators)
        calls.name, calls.closed = self._name_of, closed
        self._executed = calls
        return calls

    def _name_of(self, one: Closing) -> bytes:
        """Return the name of a window; empty if no copy of its tuples can be recognised."""
        value = self._origin + self.keys.text(one.key)
        if self._by_bounds:
            return _name(value, one.start, one.end)
        if self._keys is None:
            return b""
        # In a new run another window may have the same bounds.
        places = np.searchsorted(cast("StepPlan", self.run).rows, one.rows)
        tuples = self._keys[places, :2].sum(axis=0, dtype=np.uint64)
        return _name(value, one.start, one.end, tuples.tobytes()) if tuples.any() else b""

    def _mark(self, record: WindowRecord) -> None:
        """Mark the windows that have closed, and the tuples that leave."""
        marks = self._state.marks
        names: dict[int, bytes] = {}
        received = received_streams(record)
        for one, result in self._executed.done:
            if not result.name:
                continue
            noted = [
                (stream, values, task, number)
                for stream, values, task, number, rows in result.noted
                if stream in received and not record.reasons.keys() >= set(rows)
            ]
            marks[result.name] = self._run_id + packed_as_plain(record, noted)
            if self._by_bounds:
                self._note_closed(one)
            else:
                places = np.searchsorted(cast("StepPlan", self.run).rows, one.rows)
                names |= dict.fromkeys(places.tolist(), result.name)
        self._mark_tuples(record, names, marks)

    def _note_closed(self, one: Closing) -> None:
        """Forget that this window and those before it are open."""
        lowest, highest = self._open.get(one.key, (FOREVER, NEVER))
        if lowest <= one.end:
            self._open[one.key] = one.end + self._time_windows.slide, highest
            if one.end >= highest:
                del self._open[one.key]

    def _mark_tuples(
        self, record: WindowRecord, names: Mapping[int, bytes], marks: dict[bytes, bytes]
    ) -> None:
        leaving = [row for row in record.leaving.tolist() if row not in record.reasons]
        counts: Counter[str] = Counter()
        lanes = [] if self._keys is None else self._keys[leaving].astype("<u8").tolist()
        oldest = self._around.wall() - self._retention_s
        packed = b"" if self._keys is None else self._keys[leaving].astype("<u8").tobytes()
        size = len(packed) // len(lanes) if lanes else 0
        for place, row in enumerate(leaving):
            key = packed[place * size : place * size + KEY_BYTES] if size else _NONE
            if key == _NONE:
                counts[ONCE_UNKEYED] += 1
                continue
            content = packed[place * size + KEY_BYTES + 8 : (place + 1) * size]
            marks[key] = content + names.get(row, self._spans)
            since = lanes[place][2] & 0xFFFFFFFF
            counts[ONCE_UNSURE] += 0 < since < oldest
        self._report(record, counts)

    def _report(self, record: WindowRecord, counts: Counter[str]) -> None:
        if counts[ONCE_UNKEYED]:
            record.report(UNKEYED)
        if counts[ONCE_UNSURE]:
            record.report(
                "a message older than the remembered keys (once_retention = "
                f"{self._retention_s} s) was processed: it may have been processed before"
            )
        record.more_counts = {**record.more_counts, **counts}

    def _repeat_emissions(self, record: WindowRecord, run: StepPlan) -> None:
        """Repeat the emissions of closed windows; tuples with marks leave."""
        status = self.rows["status"]
        for row, error in self._refused.items():
            record.note(int(np.searchsorted(run.rows, row)), *record.blame(error))
        for name, one in self._repeats.items():
            rows, numbers = np.array(one.rows), np.array(one.numbers)
            # A newer copy may have taken the place of a row.
            stays = np.isin(rows, run.rows)
            if not stays.any():
                continue
            places = np.searchsorted(run.rows, rows[stays])
            record.result = WindowResult(name=name)
            recorder = WindowRecorder(record, places, numbers[stays])
            record.result = None
            try:
                recorder.during(partial(_emit_again, record, recorder, one.packed))
            except raised() as error:
                failing = record.blame(error)
                for place in places.tolist():
                    record.note(place, *failing)
        leaves = status[run.rows] == MARKED
        record.leaving = np.flatnonzero(leaves)
        record.more_counts = {ONCE_REPEATED: int(leaves.sum())}


def _emit_again(record: WindowRecord, recorder: WindowRecorder, packed: bytes) -> None:
    for stream, values, task, number in unpack_emissions(packed):
        recorder.at(number)
        if task is None:
            recorder.emit(values, stream)
        else:
            recorder.emit_direct(there(record, stream, task), values, stream)


def _name(key: str, start: int, end: int, tuples: bytes = b"") -> bytes:
    """Return a name of a window that is the same in each process and run."""
    content = b"window %d %d %b %b" % (start, end, tuples, key.encode(errors="surrogatepass"))
    return blake2b(content, digest_size=KEY_BYTES).digest()


def _pack_spans(windows: TimeWindows) -> bytes:
    """Encode length and slide, from which the windows of a timestamp follow."""
    spans = [windows.length] + [windows.slide] * (windows.slide != windows.length)
    return b"".join(span.to_bytes(_SPAN_BYTES, "little") for span in spans)


def _unpack_spans(packed: bytes) -> TimeWindows:
    """Decode length and slide."""
    length, slide = packed[:_SPAN_BYTES], packed[_SPAN_BYTES:] or packed
    spans = int.from_bytes(length, "little"), int.from_bytes(slide, "little")
    return TimeWindows(*spans, (), tells_expired=False)


def _why_refused(
    one: _Fresh, at: int, mark: bytes, closed: Sequence[tuple[bytes, int]]
) -> Exception | None:
    """Return why a row with this mark fails; None if it repeats the emissions of its windows."""
    content = int.from_bytes(mark[_CONTENT], "little")
    if said_by(_lanes_of(one, at)).contradicts(content):
        return OtherMessageError(OTHER_MESSAGE)
    return None if closed else Reject(_NOT_FOUND)


def _keys_of(entry: OpenEntry) -> list[bytes]:
    """Return the key of each row; zeros without one."""
    keys = entry.chunk.lineage.keys
    if keys is None:
        return [_NONE] * len(entry.rows)
    joined = keys[entry.rows][:, :2].astype("<u8").tobytes()
    return [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]


def _lanes_of(one: _Fresh, at: int) -> bytes:
    keys = cast("Any", one.entry.chunk.lineage.keys)
    lanes: bytes = keys[one.entry.rows[at]].astype("<u8").tobytes()
    return lanes
