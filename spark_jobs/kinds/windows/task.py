"""``WindowedBolt``: the tuples of a task stay in its inbox until their last window has closed.

``TaskWindows`` is the task's ``Order``: it holds the rows that are taken and not done, and plans
steps. A step closes windows. It covers the rows whose last window has closed; other rows of these
windows stay in the inbox, and in their trees. The tree of each row gets the edges of what was
emitted for it.

After the death of a process the inbox has the rows, and the snapshot has all that cannot be found
in them: the watermark, and which windows have closed. A sealed step is repeated from the numbers in
its seal: the position up to which rows were known, the watermark, and the windows that were left
out.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import numpy as np

from tiercel.acker.inbox.chunk import Lineage
from tiercel.acker.inbox.contract import Covered
from tiercel.acker.metrics.contract import WINDOWS_CLOSED, WINDOWS_FAILED
from tiercel.queues.retry import RetryPolicy
from tiercel.spark_jobs.bolts.verdicts import Reject
from tiercel.spark_jobs.bolts.windowed_bolt import LONGEST_WAIT, WindowedBolt, longest_held
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.kinds.windows.assigners import Limits, Plan, WindowId, assigner_of
from tiercel.spark_jobs.kinds.windows.backlog import (
    MOST_TAKEN,
    OTHERS,
    ROOM,
    WINDOWS,
    InboxRoom,
    Moved,
    Place,
    Polls,
    StepPlan,
    Telling,
    WindowBacklog,
    roots_in,
)
from tiercel.spark_jobs.kinds.windows.record import WindowRecord
from tiercel.spark_jobs.kinds.windows.rows import (
    DEAD,
    FOREVER,
    GOOD,
    LATE,
    NEVER,
    OVERDUE,
    HeldCopies,
    HeldRows,
    Keys,
    Longs,
    Timestamps,
    Watermark,
    each_once,
    micros,
)
from tiercel.spark_jobs.kinds.windows.step import (
    Accumulators,
    FailedWindows,
    WindowCalls,
    execution_of,
)
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import OpenEntry, Share
from tiercel.spark_jobs.running.kind import Fetch, StepInput, joined, parted
from tiercel.spark_jobs.running.step import Done, Execution
from tiercel.spark_jobs.running.suspicion import place
from tiercel.spark_jobs.suspects.notes import ExecutionNotes
from tiercel.spark_jobs.topology.windowing import Windowing

log = logging.getLogger(__name__)
Recall = Callable[[Sequence[bytes]], dict[bytes, bytes]]

# Rows of the windows that close in one step.
_ROWS = 50_000
# With more held rows, looking for windows that close takes one part in ``_SHARE`` of the time.
_MANY = 20_000
_SHARE = 5


class TaskWindows:
    """``Order`` of one task of a windowed bolt. One thread only, except ``waiting``."""

    holds = True
    retry = None
    # Number of times that rows came or left.
    changes = 0
    # The step that was planned last.
    run: StepPlan | None = None
    # Position of the last entry that is taken; up to ``_judged`` an earlier attempt judged rows.
    _taken: Place = (0, 0)
    _judged: Place = (0, 0)
    # Position of the last entry that an earlier process may have died of.
    suspected: Place | None = None
    # ``Attempt.recall``: the marks of these keys, for a bolt with ``once``.
    recall: Recall
    # Number of rows that leave without their windows.
    _others = 0
    # The watermark, rows and failed windows at the last look that found nothing to close.
    _looked: tuple[int, int, int] | None = None
    # Time before which it does not look again.
    _look_at = float("-inf")
    # Time before which no step begins, after this number of steps in turn was aborted.
    _rests_until = float("-inf")
    _aborted = 0
    # The dumped order after the newest step, and the bolt's part of the newest snapshot.
    _kept = _copy = b""

    def __init__(
        self, around: Around, task: int, windowing: Windowing, policy: tuple[RetryPolicy, int]
    ) -> None:
        """``policy`` is the back-off and the limit of attempts at a window that fails."""
        self._around = around
        self._task = task
        self._component = around.topology.component_of(task)
        bolt = self.bolt = windowing.bolt
        self._clock = around.loop.time
        self.keys = Keys(windowing.keys)
        self.timestamps = Timestamps(windowing)
        self.windows = assigner_of(
            bolt.window, self.keys.digests, by_time=self._by_time, tells_expired=bolt.tells_expired
        )
        self.watermark = Watermark.of(windowing, 0.0)
        self.rows = HeldRows()
        self._entries: dict[int, OpenEntry] = {}
        self._next_entry = 0
        self.polls = Polls(self._clock)
        self.inbox_room = InboxRoom(self._clock)
        self._moved = Moved()
        self._copies = HeldCopies(self.rows)
        self._tries = FailedWindows(*policy, self._clock)
        self._held_us = micros(max(LONGEST_WAIT, longest_held(bolt)))
        self.telling = Telling(around, self._clock)
        self._accumulators = Accumulators(bolt.window)

    @property
    def _by_time(self) -> bool:
        return bool(self.bolt.timestamp_field)

    @property
    def waiting(self) -> int:
        """Number of failed windows that wait for their next attempt. Any thread."""
        return len(self._tries)

    @property
    def room(self) -> int:
        """Number of tuples that the task may take."""
        return self.bolt.max_held - self.rows.count if self._is_back() else MOST_TAKEN

    def execution(self) -> Execution:
        """Return the execution of its steps."""
        return execution_of(self.execute)

    # -- the order -------------------------------------------------------------------------------

    def opened(self, snapshot: bytes | None) -> bytes | None:
        self._kept, self._copy = parted(snapshot or b"")
        self.watermark.standstill_s = 0.0 if self._kept else self._around.standstill_s
        try:
            self._load(json.loads(self._kept or b"{}"))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning(
                "%s[%d]: its record of its windows cannot be read (%s); windows that have "
                "closed may close again, with the tuples that are left",
                self._component, self._task, error, extra={"event": "order_unreadable"},
            )  # fmt: skip
        return self._copy or None

    def _load(self, state: Mapping[str, Any]) -> None:
        if state:
            self.windows.load(state["windows"])
            self.watermark.highest.update({int(task): at for task, at in state["highest"].items()})
            self.watermark.at = int(state["at"])
            self._judged = cast("Place", tuple(state["taken"]))
            self._moved.load(state.get("moved", ()))
            self._copies.load(state.get("copies", ()))

    def backlog(self, done: Mapping[str, bytes]) -> WindowBacklog:
        self._backlog = WindowBacklog(done, self)
        return self._backlog

    def again(
        self, shares: Sequence[Share], record: Record, lineage: Lineage, *, repeated: bool
    ) -> list[int]:
        """Return all rows of a step that was aborted, until that has happened too often."""
        del shares
        if not record.aborted or repeated:
            return []
        self._aborted += 1
        if self._aborted >= self._tries.limit:
            self._aborted = 0
            for row in record.reasons:
                record.verdicts[row] = Reject(record.reasons[row])
            return []
        self._rests_until = self._clock() + self._tries.back_off_s(self._aborted)
        return list(range(len(lineage.counts)))

    def noted(self, shares: Sequence[Share], done: Done) -> Done:
        del shares
        run = cast("StepPlan", self.run)
        record = cast("WindowRecord", done.record)
        if done.again:
            run.failed = {one.id for one in run.plan.closings}
            again = done.again
        else:
            self._aborted = 0 if not record.aborted else self._aborted
            leaves = np.zeros(len(run.rows), bool)
            leaves[record.leaving] = True
            leaves[list(record.reasons)] = True
            again = np.flatnonzero(~leaves).tolist()
            if not run.repeated:
                self._remove(run.rows[leaves], with_windows=run.kind != OTHERS)
        if run.kind == WINDOWS:
            self.windows.close(self.rows, run.plan, run.failed)
            closed = [one.id for one in run.plan.closings if one.id not in run.failed]
            self._tries.note(closed, run.errors)
        self.changes += 1
        self.inbox_room.free()
        kept = self._dump()
        if kept == self._kept and done.snapshot is None:
            return replace(done, again=again)
        self._kept = kept
        self._copy = self._copy if done.snapshot is None else done.snapshot
        return replace(done, again=again, snapshot=joined(self._kept, self._copy))

    def conflicted(self, shares: Sequence[Share], done: Done) -> None:
        """Note that the messages of all rows of the step come again: the rows are dropped."""
        del shares, done
        run = cast("StepPlan", self.run)
        run.conflicted = True
        if not run.repeated:
            self._drop(run)

    def _drop(self, run: StepPlan) -> None:
        """Have the rows of a step leave whose messages have failed, and come again."""
        dead = run.rows[self.rows.alive[run.rows]]
        self.windows.removed(self.rows, dead)
        self._others += int((self.rows["status"][dead] == GOOD).sum())
        self.rows["status"][dead] = DEAD

    def _dump(self) -> bytes:
        oldest = self.rows.first or self._taken
        state = {
            "taken": self._taken,
            "at": self.watermark.at,
            "highest": self.watermark.highest,
            "windows": self.windows.dump(),
            "moved": self._moved.dump(oldest),
            "copies": self._copies.dump(oldest),
        }
        return json.dumps(state).encode()

    # -- input -----------------------------------------------------------------------------------

    def ingest(self, entry: OpenEntry) -> None:
        """Take the rows of an entry."""
        at = self._taken = place(entry.position)
        is_new = at > self._judged
        chunk, rows = entry.chunk, entry.rows
        columns = self._columns(entry, at)
        times = np.where(columns["status"] == GOOD, columns["time"], NEVER)
        before = self._before(chunk.route.source_task, times)
        self._admit(entry, columns, before, is_new=is_new)
        if is_new:
            self.inbox_room.use(chunk.values.num_rows, entry.size)
        self.changes += 1
        self.telling.add(roots_in(chunk.lineage, rows))

    def _admit(
        self, entry: OpenEntry, columns: dict[str, Longs], before: Longs, *, is_new: bool
    ) -> None:
        """Put the rows of an entry into windows, given the watermark ``before`` each."""
        chunk, rows, status = entry.chunk, entry.rows, columns["status"]
        # An earlier attempt has judged the others, and let those leave that were late.
        at = place(entry.position)
        judged = before if is_new else np.full(len(rows), self._moved.before(at))
        late = self.windows.judge(self.rows, columns, judged) & (status == GOOD)
        if late.any():
            if self._by_time:
                status[late] = LATE
            else:
                # A tuple of now is never late: it has waited, or the server's clock is behind.
                columns["time"][late] = judged[late]
                self.windows.judge(self.rows, columns, judged)
                self._moved.note(at, int(judged[0]))
        held = self.rows.add(columns)
        self._copies.retaken(at, held)
        if chunk.lineage.keys is not None:
            self._replace(chunk.lineage.keys[rows], held)
        good = held[self.rows["status"][held] == GOOD]
        self._others += len(held) - len(good)
        self.windows.added(self.rows, good)

    def _columns(self, entry: OpenEntry, at: Place) -> dict[str, Longs]:
        """Return the columns of an entry's rows that do not depend on other rows."""
        rows = entry.rows
        arrived = self.timestamps.arrival_us(at[0], self._around.wall())
        self.polls.got(arrived, len(rows), entry.size)
        times, status = self.timestamps.of(entry.chunk, rows, arrived)
        number = self._next_entry
        self._next_entry += 1
        self._entries[number] = entry
        full = np.ones(len(rows), np.int64)
        return {
            "time": times,
            "key": self.keys.of(entry.chunk, rows),
            "arrived": full * arrived,
            "ms": full * at[0],
            "seq": full * at[1],
            "entry": full * number,
            "row": rows.astype(np.int64),
            "status": status,
        }

    def _before(self, source: int, times: Longs) -> Longs:
        """Return the watermark before each of a source's tuples."""
        if self._by_time:
            return self.watermark.follow(source, times, self.polls.time_s)
        return np.full(len(times), self.watermark.at)

    def _replace(self, keys: Any, held: Longs) -> None:
        """Have the tuples of messages that are delivered again take the place of earlier copies."""
        for index in self._copies.add(keys, held, by_time=self._by_time):
            if index < held[0]:
                self.windows.removed(self.rows, np.array([index]))
                self._others += 1

    def _remove(self, rows: Longs, *, with_windows: bool) -> None:
        """Remove rows that the step covers."""
        if not with_windows:
            self._others -= int((self.rows["status"][rows] != GOOD).sum())
        self._copies.remove(self._entries, rows)
        self.rows.remove(rows)

    # -- the next step ---------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock of the next step that needs no tuple; None: there is none."""
        moments = self._tries.due_at
        end = self.windows.next_end(self.rows)
        if end == NEVER and self._by_time:
            # Windows of tuples: all tuples count when the watermark is above them.
            end = max(self.watermark.highest.values(), default=NEVER) + 1
        # Windows that are due already wait for another attempt.
        if self.watermark.at < end < FOREVER and self.rows.count:
            if self._by_time:
                moments += self.polls.reached_at(self.watermark.reaches(end))
            else:
                moments += self.polls.shown_at(end)
        if (oldest := self.rows.oldest) is not None:
            left_us = oldest + self._held_us - 1e6 * self._around.wall()
            moments.append(self._clock() + left_us / 1e6)
        if self.rows.count:
            moments += self.telling.next_at
        moments += self.inbox_room.next_at
        waits_until = max(self._look_at, self._rests_until)
        if waits_until > self._clock():
            # Before, there is no step.
            return max(min(moments, default=waits_until), waits_until)
        return min(moments, default=None)

    def advance(self) -> int:
        """Return the watermark now."""
        if self._by_time:
            return self.watermark.advance(self.polls.emptied_s)
        self.watermark.at = max(self.watermark.at, self.polls.emptied_us)
        return self.watermark.at

    def next_step(self, *, must: bool) -> StepPlan | None:
        """Plan the next step; None if there is nothing to do, unless there ``must`` be one."""
        self.run = None
        if self._clock() < self._rests_until or not self._is_back():
            return None
        self._tidy()
        watermark = self.advance()
        self._find_overdue()
        if self._others:
            rows = np.flatnonzero(self.rows.alive & (self.rows["status"] != GOOD))
            self.run = StepPlan(kind=OTHERS, rows=rows)
        elif (plan := self._due(watermark)) is not None:
            self.run = StepPlan(kind=WINDOWS, plan=plan, rows=self._rows_of(plan))
        elif must or self.inbox_room.is_due:
            self.run = StepPlan(kind=ROOM)
        return self.run

    def _is_back(self) -> bool:
        """Return True once the rows are here that an earlier attempt knew at its last step.

        Before, a window would close without some of its tuples.
        """
        return self._taken >= self._judged or self.polls.has_emptied

    def _tidy(self) -> None:
        if self.rows.compact():
            known = set(np.unique(self.rows["entry"]).tolist())
            self._entries = {at: entry for at, entry in self._entries.items() if at in known}
            renumbered = self.keys.prune(self.rows["key"])
            if renumbered is not None:
                self._renumber(renumbered)

    def _renumber(self, keys: Mapping[int, int]) -> None:
        """Note that keys have new numbers."""
        self.windows.renumber(keys)
        self._accumulators.renumber()
        self.rows["key"][:] = [keys[key] for key in self.rows["key"].tolist()]

    def _due(self, watermark: int) -> Plan | None:
        waiting = self._tries.waiting
        look = watermark, self.changes, len(waiting)
        if look == self._looked or self._clock() < self._look_at:
            return None
        if self.windows.next_end(self.rows) <= watermark:
            began = time.perf_counter()
            plan = self.windows.plan(self.rows, watermark, waiting, Limits(rows=_ROWS))
            if self.rows.count > _MANY:
                # Sessions are looked for among all rows: not in each step.
                self._look_at = self._clock() + _SHARE * (time.perf_counter() - began)
            if plan.closings or self.windows.leaving(self.rows, plan, set()).size:
                return plan
        # A failed window that is due would be in the plan, unless it is another one now.
        self._tries.keep(waiting)
        self._looked = look
        self.windows.passed(watermark)
        return None

    def _rows_of(self, plan: Plan) -> Longs:
        parts = [part for one in plan.closings for part in (one.rows, one.expired)]
        parts.append(self.windows.leaving(self.rows, plan, set()))
        return each_once(parts, self.rows.size)

    def _find_overdue(self) -> None:
        """Give back rows that have waited for so long that the broker would take them back."""
        oldest = self.rows.oldest
        before = int(1e6 * self._around.wall()) - self._held_us
        if oldest is None or oldest > before:
            return
        rows = np.flatnonzero(self.rows.good & (self.rows["arrived"] <= before))
        self.windows.removed(self.rows, rows)
        self.rows["status"][rows] = OVERDUE
        self._others += len(rows)

    def shares(self, rows: Longs) -> list[Share]:
        """Return the shares of these rows, which are ascending."""
        entries = self.rows["entry"][rows]
        starts = np.flatnonzero(np.diff(entries, prepend=-1))
        parts = np.split(self.rows["row"][rows], starts[1:]) if rows.size else []
        numbers = entries[starts].tolist()
        return [
            Share(self._entries[number], part) for number, part in zip(numbers, parts, strict=True)
        ]

    @property
    def numbers(self) -> list[int]:
        """The numbers from which a later attempt repeats the step."""
        run = cast("StepPlan", self.run)
        numbers = [run.kind, *self._taken]
        if run.kind == WINDOWS:
            numbers += [run.plan.watermark, run.plan.number]
            numbers += [number for one in sorted(run.plan.waiting) for number in one]
        if run.kind == OTHERS:
            status = self.rows["status"][run.rows]
            starts = np.flatnonzero(np.diff(status, prepend=-1))
            counts = np.diff([*starts.tolist(), len(status)])
            numbers += np.column_stack((status[starts], counts)).ravel().tolist()
        return numbers

    def repeat(self, covered: Covered, fetch: Fetch) -> StepInput:
        kind, ms, seq, *numbers = covered.inner
        self._fetch_known((ms, seq), fetch)
        run = self.run = StepPlan(kind=kind, repeated=True)
        if kind == WINDOWS:
            watermark, number, *waits = numbers
            waiting = frozenset(zip(waits[::2], waits[1::2], strict=True))
            self.watermark.at = max(self.watermark.at, watermark)
            # Rows that were to leave without their windows had left before.
            strange = np.flatnonzero(self.rows.alive & (self.rows["status"] != GOOD))
            self.rows["status"][strange] = GOOD
            self.windows.added(self.rows, strange)
            run.plan = self.windows.plan(self.rows, watermark, waiting, Limits(windows=number))
            run.rows = self._rows_of(run.plan)
        elif kind == OTHERS:
            run.rows = self._indices(self._backlog.exactly(covered))
            status = np.repeat(numbers[::2], numbers[1::2])
            if len(status) == len(run.rows):
                self.rows["status"][run.rows] = status
        return StepInput(shares=self.shares(run.rows))

    def _fetch_known(self, known: Place, fetch: Fetch) -> None:
        self._backlog.fetch_known(known, fetch)

    def repeated(self, covered: Covered) -> None:
        run = cast("StepPlan", self.run)
        shares = self._backlog.exactly(covered)
        self._remove(self._indices(shares), with_windows=True)
        self._backlog.take_out(shares, covered.step, 0)
        if run.conflicted:
            self._drop(run)
        self._others = int((self.rows.alive & (self.rows["status"] != GOOD)).sum())
        self._backlog.resume()

    def _indices(self, shares: Sequence[Share]) -> Longs:
        """Return the indices of the rows of these shares."""
        numbers = {entry.position: number for number, entry in self._entries.items()}
        found = [np.zeros(0, np.int64)]
        for share in shares:
            of_entry = np.flatnonzero(self.rows["entry"] == numbers[share.entry.position])
            inside = np.isin(self.rows["row"][of_entry], share.rows)
            found.append(of_entry[inside & self.rows.alive[of_entry]])
        return np.sort(np.concatenate(found))

    # -- execution -------------------------------------------------------------------------------

    def execute(self, bolt: WindowedBolt, record: WindowRecord) -> None:
        """Execute the step."""
        run = cast("StepPlan", self.run)
        calls = self._calls(bolt, record, run.rows)
        calls.expect(run.plan.closings)
        if run.kind == OTHERS:
            status, times = self.rows["status"][run.rows], self.rows["time"][run.rows]
            calls.let_leave(self.bolt, status, times)
        if run.kind != WINDOWS:
            return
        notes = self._notes()
        blocked: set[int] = set()
        for one in run.plan.closings:
            if one.key in blocked:
                run.failed.add(one.id)
                continue
            error = calls.close(one, self.keys.value(one.key), notes)
            if error is not None:
                self._failed(run, one.id, error, np.searchsorted(run.rows, one.rows), record)
                # Windows of tuples close in turn.
                blocked |= {one.key} if self._counts and one.id in run.failed else set()
        if notes is not None:
            notes.rest()
        self._accumulators.forget(run.plan.watermark - self._length_us)
        record.more_counts = {
            WINDOWS_CLOSED: run.plan.number - len(run.failed),
            WINDOWS_FAILED: len(run.errors),
        }
        leaving = self.windows.leaving(self.rows, run.plan, run.failed)
        record.leaving = np.searchsorted(run.rows, leaving)

    def _calls(self, bolt: WindowedBolt, record: WindowRecord, rows: Longs) -> WindowCalls:
        return WindowCalls(bolt, record, self.rows, rows, self._accumulators)

    def _notes(self) -> ExecutionNotes | None:
        """Return the notes that name a window which kills its process; None if no held row was
        there when a process died.
        """
        if self.suspected is None:
            return None
        if (self.rows.first or self._taken) > self.suspected:
            self.suspected = None
            return None
        return self._around.suspicion.notes(self._task)

    @property
    def _length_us(self) -> int:
        length = getattr(self.bolt.window, "length", None)
        return micros(length) if isinstance(length, timedelta) else 0

    @property
    def _counts(self) -> bool:
        return isinstance(getattr(self.bolt.window, "length", None), int)

    def _failed(
        self,
        run: StepPlan,
        id_: WindowId,
        error: BaseException,
        places: Longs,
        record: WindowRecord,
    ) -> None:
        """Have a window tried again whose call raised; after too many attempts reject its rows."""
        reason, verdict = record.blame(error)
        if self._tries.may_go_on(id_, error):
            run.failed.add(id_)
            run.errors[id_] = error
            return
        if not isinstance(error, Reject):
            reason = f"its window failed {self._tries.limit} times: {reason}"
            verdict = Reject(reason)
        log.warning(
            "%s[%d]: a window of %d tuples is given up, and its messages become dead letters: %s",
            self._component, self._task, len(places), reason, extra={"event": "window_given_up"},
        )  # fmt: skip
        for row in places.tolist():
            record.note(row, reason, verdict)
