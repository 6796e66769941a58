"""The windows of one task: which rows each has, and when it closes. Pure.

Rows are named by their index in the columns of ``HeldRows``, which are in the order of the inbox;
an index stays valid until ``HeldRows.compact``. Times are microseconds since 1970.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, cast

import numpy as np

from tiercel.spark_jobs.bolts.windowed_bolt import MOST_WINDOWS, Session, Sliding
from tiercel.spark_jobs.kinds.windows.rows import (
    FOREVER,
    NEVER,
    FirstOpen,
    HeldRows,
    Longs,
    Mask,
    NewestWindow,
    each_once,
    groups_of,
    is_near,
    micros,
    numbers_in,
)

# A window in this attempt and the next: its end or number, and the digest of its key.
WindowId = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """A window that closes, by indices of rows, in the order of their timestamps."""

    id: WindowId
    key: int
    start: int
    end: int
    rows: Longs
    # Rows that the window before this one did not have.
    new: Mask
    # Rows of the window before this one that this one does not have.
    expired: Longs
    # Number of this window among the windows of each row, below MOST_WINDOWS.
    numbers: Longs


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The windows that one step closes."""

    closings: Sequence[Closing] = ()
    # The watermark up to which windows are closed.
    watermark: int = NEVER
    # Failed windows that are left out, as they wait for their next attempt.
    waiting: AbstractSet[WindowId] = frozenset()

    @property
    def number(self) -> int:
        """Number of windows."""
        return len(self.closings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds on a plan."""

    # Rows of all windows; but at least one window is planned, or all that end at one time.
    rows: int = FOREVER
    # Windows, unless they overlap.
    windows: int = FOREVER


class Assigner(Protocol):
    """Assigns the rows of one kind of windows."""

    def judge(self, rows: HeldRows, columns: dict[str, Longs], before: Longs) -> Mask:
        """Return a mask of the new rows that are late, given the watermark ``before`` each; set the
        column ``first`` of the others.
        """

    def added(self, rows: HeldRows, fresh: Longs) -> None:
        """Note new rows in windows."""

    def next_end(self, rows: HeldRows) -> int:
        """Return a time before which no window closes, by the watermark; ``NEVER``: now."""

    def plan(
        self, rows: HeldRows, watermark: int, waiting: AbstractSet[WindowId], limits: Limits
    ) -> Plan:
        """Return the windows that close, in order. Depends on nothing but rows and state."""

    def leaving(self, rows: HeldRows, plan: Plan, failed: AbstractSet[WindowId]) -> Longs:
        """Return the rows that leave when the plan is carried out, ascending, if the ``failed``
        windows are tried again.
        """

    def close(self, rows: HeldRows, plan: Plan, failed: AbstractSet[WindowId]) -> None:
        """Note that the plan is carried out. The leaving rows are removed afterwards."""

    def passed(self, watermark: int) -> None:
        """Note that no window is due at this watermark: a new tuple joins only later ones."""

    def removed(self, rows: HeldRows, gone: Longs) -> None:
        """Note that rows are about to be removed that leave without their windows."""

    def open_windows(self, rows: HeldRows) -> int:
        """Return the number of windows that have held rows and have not closed."""

    def renumber(self, keys: Mapping[int, int]) -> None:
        """Note that keys have new numbers; keys without one have no rows."""

    def dump(self) -> dict[str, Any]:
        """Return the state that outlives the process, in JSON's types."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Load it."""


class TimeWindows:
    """``Assigner`` of windows in time: tumbling and sliding."""

    def __init__(
        self, length: int, slide: int, digests: Sequence[int], *, tells_expired: bool
    ) -> None:
        """``digests`` has the digest of each key, by its number."""
        self.length = length
        self.slide = slide
        self._digests = digests
        # A row is held for this time after its last window.
        self._more = self.slide if tells_expired else 0
        self._stays = self.slide < self.length or tells_expired
        # All windows up to here are closed, except these.
        self._closed = NEVER
        self._open: set[WindowId] = set()
        self._next = FOREVER
        self._opened = FirstOpen()

    def first_end(self, times: Longs) -> Longs:
        """Return the end of the first window of each timestamp."""
        return (times - self.length) // self.slide * self.slide + self.slide + self.length

    def last_end(self, times: Longs) -> Longs:
        """Return the end of the last window of each timestamp."""
        return times // self.slide * self.slide + self.length

    def judge(self, rows: HeldRows, columns: dict[str, Longs], before: Longs) -> Mask:  # noqa: ARG002 - other rows make no difference
        times = columns["time"]
        columns["first"] = self.first_end(times)
        if self._stays:
            opened = self._opened.of(columns, self.first_end(before))
            columns["first"] = np.maximum(columns["first"], opened)
        late: Mask = self.last_end(times) <= before
        return late

    def added(self, rows: HeldRows, fresh: Longs) -> None:
        if fresh.size:
            ends = rows["next"][fresh] = self._ends(rows, fresh, self._closed)
            self._next = min(self._next, int(ends.min()))

    def next_end(self, rows: HeldRows) -> int:  # noqa: ARG002 - it is known
        return NEVER if self._open else self._next

    def _due(self, rows: HeldRows, watermark: int, *, all_of_them: bool) -> Longs:
        """Return the rows that have a window which closes, or leave; or all of them."""
        good = rows.good
        return np.flatnonzero(good if all_of_them else good & (rows["next"] <= watermark))

    def _ends(self, rows: HeldRows, some: Longs, closed: int) -> Longs:
        """Return the next end of each row after ``closed``: of a window, or of its time here."""
        times = rows["time"][some]
        ends = rows["first"][some]
        ends = ends + np.maximum(0, (closed - ends) // self.slide + 1) * self.slide
        last = self.last_end(times)
        stays = last + self._more
        return np.where(ends <= last, ends, np.where(stays > closed, stays, FOREVER))

    def plan(
        self, rows: HeldRows, watermark: int, waiting: AbstractSet[WindowId], limits: Limits
    ) -> Plan:
        closings: list[Closing] = []
        held = self._due(rows, watermark, all_of_them=bool(self._open))
        for end, digests in _by_end(self._open - waiting).items():
            closings += [one for one in self._at(rows, held, end) if one.id[1] in digests]
        taken = sum(len(one.rows) for one in closings)
        closed = self._closed
        # Of windows that overlap, all that end at one time close in one step.
        most = FOREVER if self._stays else limits.windows
        while held.size and len(closings) < most:
            end = int(self._ends(rows, held, closed).min())
            if end > watermark:
                break
            found = [one for one in self._at(rows, held, end) if one.id not in waiting]
            count = sum(len(one.rows) for one in found)
            if taken and taken + count > limits.rows:
                return Plan(closings=closings, watermark=closed, waiting=waiting)
            if not self._stays:
                held = held[self.last_end(rows["time"][held]) > end]
            closings += found
            taken += count
            closed = end
        return Plan(closings=closings[:most], watermark=watermark, waiting=waiting)

    def _at(self, rows: HeldRows, held: Longs, end: int) -> list[Closing]:
        """Return the windows that end here."""
        start = end - self.length
        times = rows["time"][held]
        inside = held[(times >= start) & (times < end) & (rows["first"][held] <= end)]
        gone: dict[int, Longs] = {}
        if self._more:
            before = held[(times >= start - self.slide) & (times < start)]
            gone = dict(groups_of(rows, before[rows["first"][before] < end]))
        none = np.zeros(0, np.int64)
        return [
            Closing(
                id=(end, self._digests[key]),
                key=key,
                start=start,
                end=end,
                rows=group,
                new=rows["first"][group] == end,
                expired=gone.get(key, none),
                numbers=(end - self.first_end(rows["time"][group])) // self.slide,
            )
            for key, group in groups_of(rows, inside)
        ]

    def leaving(self, rows: HeldRows, plan: Plan, failed: AbstractSet[WindowId]) -> Longs:
        if not self._stays:
            return each_once(_rows_of(plan, failed), rows.size)
        open_ = self._still_open(plan, failed)
        held = self._due(rows, plan.watermark, all_of_them=bool(open_ or self._open))
        leaves = self.last_end(rows["time"][held]) + self._more <= plan.watermark
        times, of_keys = rows["time"][held], np.array(self._digests if open_ else (), np.int64)
        for end, digests in _by_end(open_).items():
            inside = held[(times >= end - self.length - self._more) & (times < end)]
            stays = inside[np.isin(of_keys[rows["key"][inside]], list(digests))]
            leaves &= ~np.isin(held, stays)
        return held[leaves]

    def _still_open(self, plan: Plan, failed: AbstractSet[WindowId]) -> set[WindowId]:
        # A window is also done if none of its rows is left.
        done = (self._open - plan.waiting) | {one.id for one in plan.closings}
        return (self._open - done) | set(failed)

    def close(self, rows: HeldRows, plan: Plan, failed: AbstractSet[WindowId]) -> None:
        leaving = self.leaving(rows, plan, failed)
        held = self._due(rows, plan.watermark, all_of_them=bool(self._open or failed))
        if self._stays:
            self._open = self._still_open(plan, failed)
            self._closed = max(self._closed, plan.watermark)
        rows["next"][held] = self._ends(rows, held, self._closed)
        rows["next"][leaving] = FOREVER
        self._next = int(rows["next"].min(initial=FOREVER))

    def passed(self, watermark: int) -> None:
        if self._stays:
            self._closed = max(self._closed, watermark)

    def removed(self, rows: HeldRows, gone: Longs) -> None:
        rows["next"][gone] = FOREVER

    def open_windows(self, rows: HeldRows) -> int:
        held = np.flatnonzero(rows.good)
        ends, lasts = rows["next"][held], self.last_end(rows["time"][held])
        # Others have closed, and only stay to be told as expired.
        held, ends, lasts = (column[ends <= lasts] for column in (held, ends, lasts))
        number = numbers_in(rows["key"][held], ends // self.slide, lasts // self.slide)
        return number + len(self._open)

    def renumber(self, keys: Mapping[int, int]) -> None:
        """Do nothing: it knows digests."""

    def dump(self) -> dict[str, Any]:
        if not self._stays:
            return {}
        opened = self._opened.dump(min([self._closed, *(end for end, _ in self._open)]))
        return {"closed": self._closed, "open": sorted(self._open), "opened": opened}

    def load(self, state: Mapping[str, Any]) -> None:
        self._closed = state.get("closed", NEVER)
        self._open = {(end, digest) for end, digest in state.get("open", ())}
        self._opened.load(state.get("opened", ()))


def _by_end(windows: AbstractSet[WindowId]) -> dict[int, set[int]]:
    """Return the digests of the windows that end at each time, ascending."""
    ends: dict[int, set[int]] = {}
    for end, digest in sorted(windows):
        ends.setdefault(end, set()).add(digest)
    return ends


def _rows_of(plan: Plan, failed: AbstractSet[WindowId]) -> list[Longs]:
    """Return the rows of the windows that are not tried again."""
    return [one.rows for one in plan.closings if one.id not in failed]


class SessionWindows:
    """``Assigner`` of sessions."""

    def __init__(self, window: Session, digests: Sequence[int]) -> None:
        self.gap = micros(window.gap)
        self.longest = micros(window.longest)
        self._digests = digests
        self._next = FOREVER

    def judge(self, rows: HeldRows, columns: dict[str, Longs], before: Longs) -> Mask:
        times = columns["time"]
        columns["first"] = times + self.gap
        late: Mask = times + self.gap <= before
        if not late.any():
            return late
        # A tuple that belongs to an open session is in time.
        good = rows.good
        for key in np.unique(columns["key"][late]).tolist():
            known = np.sort(rows["time"][good & (rows["key"] == key)]).tolist()
            # Sorted too, and apart: it grows.
            fresh: list[int] = []
            for at in np.flatnonzero(columns["key"] == key).tolist():
                time = int(times[at])
                near = is_near(known, time, self.gap) or is_near(fresh, time, self.gap)
                late[at] = late[at] and not near
                if not late[at]:
                    insort(fresh, time)
        return late

    def added(self, rows: HeldRows, fresh: Longs) -> None:
        if fresh.size:
            self._next = min(self._next, int(rows["time"][fresh].min()) + self.gap)

    def next_end(self, rows: HeldRows) -> int:  # noqa: ARG002 - it is known
        return self._next

    def sessions(self, rows: HeldRows) -> list[Closing]:
        """Return all sessions of the held rows."""
        held, begins, ends = self._without_pause(rows)
        times, keys = rows["time"][held], rows["key"][held]
        found: list[Closing] = []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            for first, most in self._cut(times[begin:end]):
                some = slice(begin + first, begin + most)
                found.append(self._session(held[some], times[some], int(keys[begin])))
        return found

    def _without_pause(self, rows: HeldRows) -> tuple[Longs, Longs, Longs]:
        """Return the held rows by key and time, and where each part without a pause begins and
        ends.
        """
        held = np.flatnonzero(rows.good)
        held = held[np.lexsort((rows["time"][held], rows["key"][held]))]
        times, keys = rows["time"][held], rows["key"][held]
        begins = np.flatnonzero(
            (np.diff(keys, prepend=-1) != 0) | (np.diff(times, prepend=NEVER) >= self.gap)
        )
        return held, begins, np.append(begins[1:], len(held))[: len(begins)]

    def _cut(self, times: Longs) -> Iterator[tuple[int, int]]:
        """Yield the beginning and end of each session among times without a pause."""
        at = 0
        while at < len(times):
            most = int(np.searchsorted(times, times[at] + self.longest))
            yield at, most
            at = most

    def open_windows(self, rows: HeldRows) -> int:
        held, begins, ends = self._without_pause(rows)
        times = rows["time"][held]
        long = np.flatnonzero(times[ends - 1] - times[begins] >= self.longest).tolist()
        cut = sum(len(list(self._cut(times[begins[at] : ends[at]]))) - 1 for at in long)
        return len(begins) + cut

    def _session(self, held: Longs, times: Longs, key: int) -> Closing:
        start = int(times[0])
        end = min(int(times[-1]) + self.gap, start + self.longest)
        return Closing(
            id=(end, self._digests[key]),
            key=key,
            start=start,
            end=end,
            rows=held,
            new=np.ones(len(held), bool),
            expired=held[:0],
            numbers=np.zeros(len(held), np.int64),
        )

    def plan(
        self, rows: HeldRows, watermark: int, waiting: AbstractSet[WindowId], limits: Limits
    ) -> Plan:
        found = self.sessions(rows)
        due = [one for one in found if one.end <= watermark and one.id not in waiting]
        due.sort(key=lambda one: (one.end, int(one.rows.min())))
        closings = due[: _fitting(due, limits)]
        taken = {id(one) for one in closings}
        self._next = min([one.end for one in found if id(one) not in taken], default=FOREVER)
        return Plan(closings=closings, watermark=watermark, waiting=waiting)

    def leaving(self, rows: HeldRows, plan: Plan, failed: AbstractSet[WindowId]) -> Longs:
        return each_once(_rows_of(plan, failed), rows.size)

    def close(self, rows: HeldRows, plan: Plan, failed: AbstractSet[WindowId]) -> None:  # noqa: ARG002 - what is held is open
        self._next = min([self._next, *(end for end, _ in failed)])

    def passed(self, watermark: int) -> None:
        """Do nothing: a tuple is in one session."""

    def removed(self, rows: HeldRows, gone: Longs) -> None:
        """Do nothing: sessions are made anew for each plan."""

    def renumber(self, keys: Mapping[int, int]) -> None:
        """Do nothing: it knows no keys."""

    def dump(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the windows of held rows are open."""


def _fitting(due: Sequence[Closing], limits: Limits) -> int:
    """Return how many of the windows, at least one, fit the limits."""
    taken = 0
    for place, one in enumerate(due):
        taken += len(one.rows)
        if place >= limits.windows or (place and taken > limits.rows):
            return place
    return len(due)


class CountWindows:
    """``Assigner`` of windows of tuples, per key in the order of timestamps."""

    def __init__(
        self,
        length: int,
        slide: int,
        digests: Sequence[int],
        *,
        by_time: bool,
        tells_expired: bool,
    ) -> None:
        """``by_time``: only tuples before the watermark count, and others may come before them."""
        self.length = length
        self.slide = slide
        self._digests = digests
        self._by_time = by_time
        # Columns by which the rows of a key are in order.
        self._order = ("time", "ms", "seq", "row") if by_time else ("ms", "seq", "row")
        self._expires = tells_expired
        # Number of closed rows of a key that later windows need.
        self._keeps = length if tells_expired else length - slide
        self._counted: dict[int, NewestWindow] = {}
        # Number of rows that no window has had, by key.
        self._fresh: dict[int, int] = {}

    def judge(self, rows: HeldRows, columns: dict[str, Longs], before: Longs) -> Mask:  # noqa: ARG002 - other rows make no difference
        columns["first"] = columns["time"]
        late: Mask = columns["time"] < before if self._by_time else np.zeros(len(before), bool)
        return late

    def added(self, rows: HeldRows, fresh: Longs) -> None:
        keys, counts = np.unique(rows["key"][fresh], return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            if self._digests[key] in self._counted:
                group = fresh[rows["key"][fresh] == key]
                count -= self._closed_in(rows, np.sort(group), key)  # noqa: PLW2901 - less these
            self._fresh[key] = self._fresh.get(key, 0) + count

    def passed(self, watermark: int) -> None:
        """Do nothing: late tuples are in no window of tuples."""

    def removed(self, rows: HeldRows, gone: Longs) -> None:
        for key in np.unique(rows["key"][gone]).tolist():
            group = gone[rows["key"][gone] == key]
            left = self._fresh.get(key, 0) - len(group) + self._closed_in(rows, group, key)
            self._fresh[key] = max(0, left)

    def next_end(self, rows: HeldRows) -> int:  # noqa: ARG002 - it counts them
        return NEVER if any(count >= self.slide for count in self._fresh.values()) else FOREVER

    def _closed_in(self, rows: HeldRows, group: Longs, key: int) -> int:
        """Return how many of these rows of a key closed windows have had."""
        last = self._counted.get(self._digests[key], NewestWindow()).place
        columns = [rows[name][group].tolist() for name in self._order]
        return sum(place <= last for place in zip(*columns, strict=True))

    def plan(
        self, rows: HeldRows, watermark: int, waiting: AbstractSet[WindowId], limits: Limits
    ) -> Plan:
        keys = [key for key, count in self._fresh.items() if count >= self.slide]
        held = np.flatnonzero(rows.good & np.isin(rows["key"], keys))
        found: list[Closing] = []
        for key, group in groups_of(rows, held):
            found += self._of(rows, group, key, watermark, waiting)
        closings = found[: _fitting(found, limits)]
        return Plan(closings=closings, watermark=watermark, waiting=waiting)

    def _of(
        self,
        rows: HeldRows,
        group: Longs,
        key: int,
        watermark: int,
        waiting: AbstractSet[WindowId],
    ) -> Iterator[Closing]:
        """Yield the windows of one key that close."""
        digest = self._digests[key]
        number = self._counted.get(digest, NewestWindow()).number
        times = rows["time"][group]
        end = self._closed_in(rows, group, key) + self.slide
        most = int(np.searchsorted(times, watermark)) if self._by_time else len(group)
        while end <= most and (number, digest) not in waiting:
            first, before = max(0, end - self.length), max(0, end - self.slide - self.length)
            places = np.arange(first, end)
            yield Closing(
                id=(number, digest),
                key=key,
                start=int(times[first]),
                end=int(times[end - 1]),
                rows=group[places],
                new=places >= end - self.slide,
                expired=group[before:first] if self._expires else group[:0],
                numbers=np.full(len(places), number % (2 * MOST_WINDOWS)),
            )
            end += self.slide
            number += 1

    def _closed_by(
        self, plan: Plan, failed: AbstractSet[WindowId]
    ) -> Iterator[tuple[int, list[Closing]]]:
        """Yield the windows of each key before its first failed one, if there are any."""
        keys: dict[int, list[Closing]] = {}
        for one in plan.closings:
            keys.setdefault(one.key, []).append(one)
        for key, closings in keys.items():
            places = [place for place, one in enumerate(closings) if one.id in failed]
            if done := closings[: min(places, default=len(closings))]:
                yield key, done

    def leaving(self, rows: HeldRows, plan: Plan, failed: AbstractSet[WindowId]) -> Longs:  # noqa: ARG002 - all are in windows
        parts = [np.zeros(0, np.int64)]
        for _, closings in self._closed_by(plan, failed):
            had = np.concatenate([part for one in closings for part in (one.rows, one.expired)])
            last = closings[-1].rows
            stays = last[len(last) - min(self._keeps, len(last)) :]
            parts.append(np.setdiff1d(had, stays))
        return np.sort(np.concatenate(parts))

    def close(self, rows: HeldRows, plan: Plan, failed: AbstractSet[WindowId]) -> None:
        for key, closings in self._closed_by(plan, failed):
            self._fresh[key] -= self.slide * len(closings)
            if not self._fresh[key]:
                del self._fresh[key]
            if self._keeps:
                last = int(closings[-1].rows[-1])
                place = [int(rows[name][last]) for name in self._order]
                number, digest = closings[-1].id
                self._counted[digest] = NewestWindow.of(digest, number + 1, *place)

    def open_windows(self, rows: HeldRows) -> int:
        # A row is in the windows that end at multiples of the slide up to ``length`` behind it.
        more = self.length - 1
        keys = np.flatnonzero(np.bincount(rows["key"][rows.good])).tolist()
        return sum([(self._fresh.get(key, 0) + more) // self.slide for key in keys])

    def renumber(self, keys: Mapping[int, int]) -> None:
        self._fresh = {keys[old]: count for old, count in self._fresh.items() if old in keys}
        live = set(self._digests)
        self._counted = {key: one for key, one in self._counted.items() if key in live}

    def dump(self) -> dict[str, Any]:
        return {"counted": ";".join([one.text for one in self._counted.values()])}

    def load(self, state: Mapping[str, Any]) -> None:
        # Until 0.1, a list for each key.
        lists = (f"{key} {' '.join(map(str, one))}" for key, one in state.items())
        for text in filter(None, state.get("counted", ";".join(lists)).split(";")):
            digest, *one = map(int, text.split())
            self._counted[digest] = NewestWindow.of(digest, *one)


def assigner_of(
    window: Sliding | Session, digests: Sequence[int], *, by_time: bool, tells_expired: bool
) -> Assigner:
    """Return the assigner of these windows; ``digests`` has the digest of each key."""
    if isinstance(window, Session):
        return SessionWindows(window, digests)
    length, slide = window.length, window.slide
    if isinstance(length, timedelta) and isinstance(slide, timedelta):
        return TimeWindows(micros(length), micros(slide), digests, tells_expired=tells_expired)
    counts = cast("tuple[int, int]", (length, slide))
    return CountWindows(*counts, digests, by_time=by_time, tells_expired=tells_expired)
