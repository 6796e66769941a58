"""The rows that one task of a windowed bolt holds, as columns: timestamps, keys and the watermark.

Pure. Timestamps are microseconds since 1970; ``now`` is seconds on a clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from hashlib import blake2b
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tiercel.acker.ids import is_extra, without_zeros
from tiercel.acker.inbox.chunk import Chunk, Rows
from tiercel.acker.ledger import Ids
from tiercel.spark_jobs.running.backlog import OpenEntry
from tiercel.spark_jobs.topology.windowing import Source, Windowing

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]
# Before and after all times.
NEVER = -(2**62)
FOREVER = 2**62
# The status of a row that is in windows; all others wait to leave.
GOOD = 0
# Why a row leaves without its windows.
NULL, AHEAD, LATE, REPLACED, OVERDUE, DEAD, MARKED = range(1, 8)
_FIRST_ROOM = 1_024
# A number that is an earlier time is probably one of another unit.
_1990_US = 631_152_000_000_000
# Timestamps beyond this are no times: far beyond the year 9999, and far below ``FOREVER``.
_MOST_US = 2**60
# The position of an entry begins with a time only on Redis; the memory twin counts from 1.
_LEAST_MS = 10**11
_FEW_KEYS = 10_000
# Encoding fewer keys takes longer than looking each up.
_FEW_ROWS = 64
# Spans of numbers that are counted are this wide at most, so that each key has its own range.
_WIDEST = 2**40


def micros(duration: timedelta) -> int:
    """Return a duration in microseconds."""
    return duration // timedelta(microseconds=1)


class Timestamps:
    """Reads the timestamps of tuples, by the settings of their bolt."""

    def __init__(self, windowing: Windowing) -> None:
        self._field = windowing.bolt.timestamp_field
        self._unit = windowing.unit_us
        self._ahead = micros(windowing.bolt.max_ahead)
        # The first number that was read as a time before 1990.
        self.ancient: int | None = None

    @staticmethod
    def arrival_us(position_ms: int, wall_s: float) -> int:
        """Return the time at which an entry with this position came, given the time now."""
        return position_ms * 1_000 if position_ms >= _LEAST_MS else round(wall_s * 1e6)

    def of(self, chunk: Chunk, rows: Rows, arrival_us: int) -> tuple[Longs, Longs]:
        """Return the timestamps of these rows, and their status: good, null or ahead."""
        status = np.full(len(rows), GOOD)
        if not self._field:
            return np.full(len(rows), arrival_us), status
        column = chunk.values.column(self._field)
        if len(rows) < len(column):
            column = column.take(pa.array(rows))
        unit = self._unit
        is_number = not pa.types.is_timestamp(column.type)
        if not is_number:
            column, unit = column.view(pa.int64()), 1
        null = np.zeros(len(rows), bool)
        if column.null_count:
            null = np.asarray(pc.is_null(column))
            column = pc.fill_null(column, 0)
        values = column.to_numpy(zero_copy_only=False)
        if pa.types.is_floating(column.type):
            null = null | np.isnan(values)
            values = np.where(null, 0.0, values)
        else:
            values = values.astype(np.int64)
        most = _MOST_US // unit
        far = (values > most) | (values < -most)
        # Floats are rounded to a microsecond; integers must not become floats.
        scaled = np.clip(values, -most, most) * unit
        times = scaled if scaled.dtype == np.int64 else np.rint(scaled).astype(np.int64)
        status[null] = NULL
        status[(times > arrival_us + self._ahead) & ~null | far] = AHEAD
        if is_number and self.ancient is None:
            ancient = times[(status == GOOD) & (times < _1990_US)]
            self.ancient = int(ancient[0]) if ancient.size else None
        return times, status


class Keys:
    """Numbers the keys of tuples, in the order in which they come."""

    def __init__(self, fields: Mapping[Source, tuple[str, ...]]) -> None:
        self._fields = fields
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []
        # A number for each key that is the same in each process.
        self.digests: list[int] = []

    def of(self, chunk: Chunk, rows: Rows) -> Longs:
        """Return the number of the key of each row."""
        fields = self._fields[chunk.route.component, chunk.route.stream]
        if not fields:
            return np.full(len(rows), self._number(None))
        columns = [chunk.values.column(name) for name in fields]
        if len(rows) < chunk.values.num_rows:
            columns = [column.take(pa.array(rows)) for column in columns]
        if len(columns) > 1:
            values = zip(*(column.to_pylist() for column in columns), strict=True)
            return np.array([self._number(value) for value in values], np.int64)
        if len(rows) < _FEW_ROWS:
            return np.array([self._number(value) for value in columns[0].to_pylist()], np.int64)
        encoded = columns[0].dictionary_encode(null_encoding="encode")
        numbers = np.array([self._number(one) for one in encoded.dictionary.to_pylist()], np.int64)
        found: Longs = numbers[encoded.indices.to_numpy(zero_copy_only=False)]
        return found

    def value(self, number: int) -> Any:
        """Return a key: a value, or a tuple of values."""
        return self._values[number]

    def text(self, number: int) -> str:
        """Return the text of a key, the same in each process: windows are named by it."""
        return repr(_without_zeros(self._values[number]))

    def prune(self, numbers: Longs) -> Mapping[int, int] | None:
        """Forget most keys but those with these numbers, if they are few; return the new numbers of
        the keys by their old ones. None: nothing has changed.
        """
        if len(self._values) < _FEW_KEYS:
            return None
        live = np.unique(numbers).tolist()
        if 2 * len(live) > len(self._values):
            return None
        values = [self._values[number] for number in live]
        self._numbers.clear()
        self._values.clear()
        self.digests.clear()
        return {old: self._number(value) for old, value in zip(live, values, strict=True)}

    def _number(self, value: Any) -> int:
        known = self._numbers.get(value)
        if known is not None:
            return known
        value = _one_of_equals(value)
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
            content = blake2b(self.text(number).encode(errors="surrogatepass"), digest_size=8)
            self.digests.append(int.from_bytes(content.digest()) >> 1)
        return number


def _one_of_equals(key: Any) -> Any:
    """Return one object for all NaNs, which are equal to nothing, and one zero: digests and names
    of windows are made of the key as text.
    """
    if isinstance(key, tuple):
        return tuple(map(_one_of_equals, key))
    if isinstance(key, float):
        return nan if isnan(key) else key + 0.0
    return key


def _without_zeros(key: Any) -> Any:
    """Return one decimal for all equal ones, which have as many digits as their columns."""
    if isinstance(key, tuple):
        return tuple(map(_without_zeros, key))
    return without_zeros(key) if isinstance(key, Decimal) else key


class Watermark:
    """Event time of one task: the highest timestamp of each source task minus ``lag``, for the
    slowest of them. It never goes back.

    A source that has sent nothing for ``idle_s`` does not count. If none counts, time goes on by
    the clock.

    In a new run, all messages come again whose windows were open, in any order. So the watermark
    begins ``standstill_s`` after the first of them.
    """

    # Seconds from the first tuple to the first watermark, and the time of that.
    standstill_s = 0.0
    _stands_until: float | None = None

    def __init__(self, sources: Iterable[int], lag_us: int, idle_s: float, now: float) -> None:
        self.at = NEVER
        self.highest = dict.fromkeys(sources, NEVER)
        self._seen = dict.fromkeys(self.highest, now)
        self._lag = lag_us
        self._idle_s = idle_s

    @classmethod
    def of(cls, windowing: Windowing, now: float) -> Watermark:
        """Make the watermark of a task that begins now."""
        bolt = windowing.bolt
        lag_us = micros(bolt.lag) if bolt.timestamp_field else 0
        return cls(windowing.source_tasks, lag_us, bolt.idle.total_seconds(), now)

    def follow(self, source: int, times: Longs, now: float) -> Longs:
        """Take the timestamps of a source's tuples; return the watermark before each of them.

        Tuples without a valid timestamp have ``NEVER``.
        """
        if self._stands_until is None:
            self._stands_until = now + self.standstill_s
        if source not in self.highest:
            self._forget_gone(now)
        before = self.highest.get(source, NEVER)
        # Refused timestamps tell no time.
        if (times > NEVER).any():
            self._seen[source] = now
        others = self._slowest(now, source)
        highest = np.maximum.accumulate(np.concatenate([[before], times]))
        reached = np.maximum(np.minimum(highest, others) - self._lag, self.at)
        self.highest[source] = int(highest[-1])
        if now < self._stands_until:
            return np.full(len(times), self.at)
        self.at = int(reached[-1])
        found: Longs = reached[:-1]
        return found

    def stand(self, sources: Iterable[int], now: float) -> None:
        """Note that these sources can send nothing now, so that their silence means nothing."""
        for source in sources:
            self._seen[source] = now

    def advance(self, now: float) -> int:
        """Return the watermark, which may have moved because sources are idle."""
        if self._stands_until is None or now < self._stands_until:
            return self.at
        slowest = self._slowest(now)
        if slowest == FOREVER:
            slowest = max(self.highest.values(), default=NEVER)
            if slowest > NEVER:
                slowest += max(0, round(1e6 * (now - self._last_seen - self._idle_s)))
        self.at = max(self.at, slowest - self._lag)
        return self.at

    def reaches(self, end: int) -> float | None:
        """Return the time at which the watermark reaches ``end`` if no tuple comes; None: never."""
        if max(self.highest.values(), default=NEVER) == NEVER or self._stands_until is None:
            return None
        left = sorted((seen, self.highest[source]) for source, seen in self._seen.items())
        # The watermark reaches the end when the last source that is behind becomes idle.
        while left and left[-1][1] - self._lag >= end:
            left.pop()
        if not left:
            return self._stands_until
        if len(left) < len(self._seen):
            return max(left[-1][0] + self._idle_s, self._stands_until)
        rest = max(0, end + self._lag - max(self.highest.values())) / 1e6
        return max(self._last_seen + self._idle_s + rest, self._stands_until)

    def _forget_gone(self, now: float) -> None:
        """Forget idle extra tasks: executors come and go, thousands of times in a run."""
        newest = max(self.highest.values(), default=NEVER)
        for source in [one for one in self.highest if is_extra(one)]:
            seen = self._seen.get(source, -inf)
            if now - seen >= self._idle_s and self.highest[source] < newest:
                del self.highest[source]
                self._seen.pop(source, None)

    @property
    def _last_seen(self) -> float:
        return max(self._seen.values())

    def _slowest(self, now: float, but: int | None = None) -> int:
        return min(
            [
                self.highest[source]
                for source, seen in self._seen.items()
                if source != but and now - seen < self._idle_s
            ],
            default=FOREVER,
        )


class FirstOpen:
    """The end of the first window that was open when a row came, from each place in the inbox on.

    A later attempt cannot tell it from the rows that are left, and must put them into the same
    windows: so it is part of the snapshot.
    """

    def __init__(self) -> None:
        # Places with the end from there on, ascending: position of the entry, row, end.
        self._since: list[tuple[int, int, int, int]] = []

    def of(self, columns: Mapping[str, Longs], ends: Longs) -> Longs:
        """Return the end for each row of an entry: ``ends`` by the watermark, which is ``NEVER``
        for a row that an earlier attempt took.
        """
        places = [columns[name] for name in ("ms", "seq", "row")]
        last = self._since[-1][3] if self._since else NEVER
        if self._since and tuple(int(column[0]) for column in places) <= self._since[-1][:3]:
            taken = zip(*(column.tolist() for column in places), strict=True)
            ends = np.maximum(ends, [self._at(place) for place in taken])
        else:
            ends = np.maximum(ends, last)
        # An end that is not above the last one is that of a row which an earlier attempt took.
        for row in np.flatnonzero(np.diff(np.maximum(ends, last), prepend=last) > 0).tolist():
            ms, seq, number = (int(column[row]) for column in places)
            self._since.append((ms, seq, number, int(ends[row])))
        return ends

    def _at(self, place: tuple[int, ...]) -> int:
        found = bisect_right(self._since, (*place, FOREVER))
        return self._since[found - 1][3] if found else NEVER

    def dump(self, closed: int) -> list[tuple[int, int, int, int]]:
        """Return what a later attempt needs if all windows up to ``closed`` are closed."""
        self._since = [one for one in self._since if one[3] > closed]
        return self._since

    def load(self, state: Iterable[Sequence[int]]) -> None:
        """Load it."""
        self._since = [(ms, seq, row, end) for ms, seq, row, end in state]


@dataclass(frozen=True, slots=True)
class NewestWindow:
    """The newest closed window of one key: its number, and the place of its last row."""

    number: int = 0
    place: tuple[int, ...] = (NEVER,)
    text: str = ""  # with the key's digest, for the snapshots of 100,000 keys

    @classmethod
    def of(cls, digest: int, number: int, *place: int) -> NewestWindow:
        return cls(number, place, " ".join(map(str, (digest, number, *place))))


def numbers_in(keys: Longs, firsts: Longs, lasts: Longs) -> int:
    """Return how many numbers the spans ``firsts`` to ``lasts`` contain, counted once per key."""
    if not keys.size:
        return 0
    # Spans this far behind the last one would overflow: they count as one number.
    least = int(lasts.max()) - _WIDEST
    firsts, lasts = np.maximum(firsts, least), np.maximum(lasts, least)
    begin = int(firsts.min())
    offsets = keys * (int(lasts.max()) - begin + 2) - begin
    order = np.argsort(offsets + firsts)
    begins, ends = (offsets + firsts)[order], (offsets + lasts)[order]
    reached = np.maximum.accumulate(ends)
    before = np.concatenate(([NEVER], reached[:-1]))
    return int(np.maximum(0, ends - np.maximum(begins - 1, before)).sum())


def is_near(ascending: Sequence[int], time: int, gap: int) -> bool:
    """Return True if one of these times is less than ``gap`` away."""
    place = bisect_right(ascending, time - gap)
    return place < len(ascending) and ascending[place] < time + gap


def each_once(parts: Iterable[Longs], size: int) -> Longs:
    """Return the numbers in all parts, which are below ``size``, each once, ascending."""
    among = np.zeros(size, bool)
    for part in parts:
        among[part] = True
    return np.flatnonzero(among)


class HeldRows:
    """Columns of the rows that a task holds."""

    NAMES = ("time", "key", "arrived", "ms", "seq", "entry", "row", "first", "next", "status")

    def __init__(self) -> None:
        # Timestamp; number of the key; time of arrival; position and number of the entry, and row
        # in it; end of the first window that the row may be in; ``GOOD``, or why the row leaves.
        self._columns = {name: np.zeros(_FIRST_ROOM, np.int64) for name in self.NAMES}
        self._alive = np.zeros(_FIRST_ROOM, bool)
        # Number of rows with the removed ones, and without.
        self.size = 0
        self.count = 0

    def __getitem__(self, name: str) -> Longs:
        return self._columns[name][: self.size]

    @property
    def alive(self) -> Mask:
        """Mask of the rows that are not removed."""
        return self._alive[: self.size]

    @property
    def good(self) -> Mask:
        """Mask of the rows that are in windows."""
        good: Mask = self.alive & (self["status"] == GOOD)
        return good

    def add(self, columns: Mapping[str, Longs]) -> Longs:
        """Add rows behind all others; return their indices. Their ``next`` is ``FOREVER``."""
        count = len(columns["time"])
        while self.size + count > len(self._alive):
            self._alive = np.concatenate([self._alive, np.zeros_like(self._alive)])
            for name, column in self._columns.items():
                self._columns[name] = np.concatenate([column, np.zeros_like(column)])
        places = slice(self.size, self.size + count)
        for name, values in columns.items():
            self._columns[name][places] = values
        self._columns["next"][places] = FOREVER
        self._alive[places] = True
        self.size += count
        self.count += count
        return np.arange(places.start, places.stop)

    def remove(self, rows: Longs) -> None:
        """Remove rows, each at most once."""
        self._alive[rows] = False
        self["next"][rows] = FOREVER
        self.count -= len(rows)

    def compact(self) -> bool:
        """Forget removed rows if they are many; return True if indices have changed."""
        if self.size < _FIRST_ROOM or self.count * 2 > self.size:
            return False
        alive = np.flatnonzero(self.alive)
        for name, column in self._columns.items():
            self._columns[name][: len(alive)] = column[alive]
        self._alive[: len(alive)] = True
        self._alive[len(alive) :] = False
        self.size = len(alive)
        return True

    @property
    def oldest(self) -> int | None:
        """Time of arrival of the first row; None if there is none."""
        first = self._first()
        return None if first is None else int(self["arrived"][first])

    @property
    def first(self) -> tuple[int, int] | None:
        """Position of the entry of the first row; None if there is none."""
        first = self._first()
        return None if first is None else (int(self["ms"][first]), int(self["seq"][first]))

    def _first(self) -> int | None:
        alive = self.alive
        first = int(alive.argmax()) if alive.size else 0
        return first if alive.size and alive[first] else None


class HeldCopies:
    """Finds held tuples whose message is delivered again, by the keys of tuples."""

    def __init__(self, rows: HeldRows) -> None:
        self._rows = rows
        # Number of the entry and row in it, by key.
        self._places: dict[bytes, tuple[int, int]] = {}
        # By position of the entry, ascending: spans of rows, from one to another, that are in
        # windows which were over when they came, since the one that ends then.
        self._inherited: dict[tuple[int, int], list[list[int]]] = {}

    def add(self, keys: Ids, held: Longs, *, by_time: bool) -> list[int]:
        """Take the keys of new rows; return the rows with the same keys, which they replace."""
        rows = self._rows
        replaced: list[int] = []
        for index, lanes in zip(held.tolist(), keys[:, :2], strict=True):
            if not lanes.any():
                continue
            key = lanes.tobytes()
            earlier = self._places.get(key)
            self._places[key] = int(rows["entry"][index]), int(rows["row"][index])
            if earlier is not None:
                entry, row = earlier
                first, end = np.searchsorted(rows["entry"], [entry, entry + 1]).tolist()
                some = slice(first, end)
                same = (
                    rows.alive[some] & (rows["status"][some] == GOOD) & (rows["row"][some] == row)
                )
                for before in (first + np.flatnonzero(same)).tolist():
                    self._replace(before, index, by_time=by_time)
                    replaced.append(before)
        return replaced

    def holds(self, key: bytes) -> bool:
        """Return True if a tuple with this key is held."""
        return key in self._places

    def _replace(self, before: int, index: int, *, by_time: bool) -> None:
        """Have a row take the place of the one ``before``.

        A window that has the row before is open for the new one, though the watermark may be past
        its end: it closes with the next step.
        """
        rows = self._rows
        if by_time and rows["time"][index] == rows["time"][before]:
            if rows["first"][before] < rows["first"][index]:
                self._inherit(before, index)
            if rows["status"][index] == LATE:
                rows["status"][index] = GOOD
        rows["status"][before] = REPLACED

    def _inherit(self, before: int, index: int) -> None:
        rows = self._rows
        first = rows["first"][index] = int(rows["first"][before])
        ms, seq, row = (int(rows[name][index]) for name in ("ms", "seq", "row"))
        spans = self._inherited.setdefault((ms, seq), [])
        if spans and spans[-1][1:] == [row - 1, first]:
            spans[-1][1] = row
        else:
            spans.append([row, row, first])

    def retaken(self, at: tuple[int, int], held: Longs) -> None:
        """Put rows of an entry that an earlier attempt took into the windows of the copies whose
        place they have taken: these may have left the inbox.
        """
        for begin, end, first in self._inherited.get(at, ()):
            row = self._rows["row"][held]
            some = held[(begin <= row) & (row <= end)]
            self._rows["first"][some] = np.minimum(self._rows["first"][some], first)

    def dump(self, oldest: tuple[int, int]) -> list[list[int]]:
        """Return what a later attempt needs, given the position of the oldest held tuple."""
        kept = {at: spans for at, spans in self._inherited.items() if at >= oldest}
        self._inherited = kept
        return [[*at, *span] for at, spans in kept.items() for span in spans]

    def load(self, state: Iterable[Sequence[int]]) -> None:
        """Load it."""
        for ms, seq, *span in state:
            self._inherited.setdefault((ms, seq), []).append(span)

    def remove(self, entries: Mapping[int, OpenEntry], rows: Longs) -> None:
        """Forget the keys of rows that are about to be removed."""
        if not self._places:
            return
        numbers, places = (self._rows[name][rows].tolist() for name in ("entry", "row"))
        for number, row in zip(numbers, places, strict=True):
            keys = entries[number].chunk.lineage.keys
            if keys is None:
                continue
            key = keys[row, :2].tobytes()
            if self._places.get(key) == (number, row):
                del self._places[key]


def groups_of(rows: HeldRows, held: Longs) -> Iterator[tuple[int, Longs]]:
    """Yield the rows of each key in the order of their timestamps; keys by their first row."""
    keys = rows["key"][held]
    order = np.lexsort((rows["time"][held], keys))
    ends = np.flatnonzero(np.diff(keys[order], append=-1)) + 1
    groups = np.split(held[order], ends[:-1]) if held.size else []
    for group in sorted(groups, key=lambda one: int(one.min())):
        yield int(rows["key"][group[0]]), group
