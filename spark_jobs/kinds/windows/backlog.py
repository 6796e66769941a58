"""The backlog of a windowed bolt, whose entries stay in the inbox; reports to the spouts."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import Lineage, Rows
from tiercel.acker.inbox.contract import Claims, Covered, Entry, Rest
from tiercel.acker.ledger import Ids
from tiercel.spark_jobs.kinds.windows.assigners import Plan, WindowId
from tiercel.spark_jobs.kinds.windows.rows import FOREVER, NEVER, Longs
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import TAKEN_BYTES
from tiercel.spark_jobs.running.backlog import Backlog, OpenEntry, Reader, Share
from tiercel.spark_jobs.running.kind import Fetch
from tiercel.spark_jobs.running.suspicion import place

log = logging.getLogger(__name__)

MOST_TAKEN = 20_000
# Reports of held tuples to the spouts: the interval, the number per message timeout, and the size.
_TELL_S = 0.1
_TELLS_PER_TIMEOUT = 3
_TOLD = 5_000
# A poll that takes longer than it waits by this time found no server.
_SLOW_POLL_S = 1.0
# Tuples and bytes that are taken and still use room of the inbox, and for how long.
_ROOM_TUPLES = 4_000
_ROOM_BYTES = 8 * 1024 * 1024
_ROOM_S = 1.0
# A position, to be compared.
Place = tuple[int, int]
# Kinds of steps, the first number in a seal.
WINDOWS, OTHERS, ROOM, REPEATS = range(4)


@dataclass(kw_only=True, slots=True)
class StepPlan:
    """One step."""

    kind: int
    # Rows of the step, by their indices in the columns, ascending.
    rows: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    plan: Plan = field(default_factory=Plan)
    # Windows that are tried again.
    failed: set[WindowId] = field(default_factory=set)
    errors: dict[WindowId, BaseException] = field(default_factory=dict)
    # True if the step was sealed by an earlier attempt.
    repeated: bool = False
    conflicted: bool = False


class HoldsRows(Protocol):
    """The order of a task that holds the rows of its backlog."""

    inbox_room: InboxRoom

    @property
    def numbers(self) -> list[int]:
        """The numbers from which a later attempt repeats the step."""

    def ingest(self, entry: OpenEntry) -> None:
        """Take the rows of an entry."""


class InboxRoom:
    """The room of the inbox that held entries use, until the next step frees it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Room in use, in tuples and bytes; when its use began; and the room that the step frees.
        self._used = (0, 0)
        self._since = 0.0
        self.freed = (0, 0)

    def use(self, tuples: int, size: int) -> None:
        """Note an entry that was taken."""
        self._since = self._since if self._used[0] else self._clock()
        self._used = self._used[0] + tuples, self._used[1] + size

    def free(self) -> None:
        """Have the next step free all room."""
        self.freed, self._used = self._used, (0, 0)

    @property
    def next_at(self) -> list[float]:
        """Time at which the room is worth a step, if some is used."""
        return [self._since + _ROOM_S] if self._used[0] else []

    @property
    def is_due(self) -> bool:
        """True if the room is worth a step."""
        tuples, size = self._used
        late = tuples > 0 and self._clock() >= self._since + _ROOM_S
        return late or tuples >= _ROOM_TUPLES or size >= _ROOM_BYTES


class WindowBacklog(Backlog):
    """``Backlog`` of a windowed bolt: its entries stay until the last window of each tuple."""

    def __init__(self, done: Mapping[str, bytes], order: HoldsRows) -> None:
        super().__init__(done)
        self._order = order
        # While a sealed step is repeated: the position up to which it knew entries, and later ones.
        self._known: Place | None = None
        self._later: list[Entry] = []
        self._read: Reader | None = None
        # The last entry that came.
        self._last: Place = (0, 0)

    def add(self, entries: Iterable[Entry], read: Reader) -> list[int]:
        self._read = read
        entries = list(entries)
        if entries:
            self._last = place(entries[-1].position)
        if (known := self._known) is not None:
            self._later += [entry for entry in entries if place(entry.position) > known]
            entries = [entry for entry in entries if place(entry.position) <= known]
        strange = super().add(entries, read)
        for entry in entries:
            opened = self._open.get(entry.position)
            if opened is not None:
                self._order.ingest(opened)
        return strange

    def fetch_known(self, known: Place, fetch: Fetch) -> None:
        """Fetch all entries up to a position."""
        self._known = known
        while self._last < known:
            before = self._last
            fetch(MOST_TAKEN, 0.0, Claims(0))
            if self._last == before:
                return

    def resume(self) -> None:
        """Add the entries that a repeated step did not know."""
        self._known = None
        later, self._later = self._later, []
        if self._read is not None:
            self.add(later, self._read)

    def rests(self, begun: Sequence[Share]) -> list[Rest]:  # noqa: ARG002 - as in ``Backlog``
        """Return nothing: in another task the tuples of open windows would be in other windows."""
        return []

    def take_out(self, shares: Sequence[Share], step: int, ticks: int) -> Covered:
        skipped = [(entry.tuples, len(entry.payload)) for entry in self._passed_over]
        tuples, size = self._order.inbox_room.freed
        covered = super().take_out(shares, step, ticks)
        return replace(
            covered,
            tuples=tuples + sum(count for count, _ in skipped),
            bytes=size + sum(count for _, count in skipped),
            inner=self._order.numbers,
        )


def roots_in(lineage: Lineage, rows: Rows) -> Ids:
    """Return the roots of these rows."""
    if len(rows) == len(lineage.counts):
        return lineage.roots
    found: Ids = lineage.roots[
        np.isin(np.repeat(np.arange(len(lineage.counts)), lineage.counts), rows)
    ]
    return found


class Polls:
    """The polls of one inbox, and two clocks that show how far the task has seen into it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Time in which the inbox was not polled: Redis was away, or the bolt was paused.
        self._away_s = 0.0
        # Time by the clock of the inbox's server minus ``clock``: of the quickest entry.
        self._offset_us: int | None = None
        self._got = (0, 0)
        # By each clock, a time before which nothing came that is not taken.
        self.emptied_s = 0.0
        self.emptied_us = NEVER
        # True once all tuples were taken that were there.
        self.has_emptied = False
        self._began_s = clock()
        self._paused_at: float | None = None

    @property
    def time_s(self) -> float:
        """Seconds of polling since the beginning."""
        return self._clock() - self._began_s - self._away_s

    @property
    def server_us(self) -> int:
        """Time on the clock of the inbox's server, or earlier."""
        offset_us = self._offset_us
        return NEVER if offset_us is None else round(1e6 * self._clock()) + offset_us

    def got(self, arrived_us: int, tuples: int, size: int) -> None:
        """Note an entry that was taken."""
        ahead_us = arrived_us - round(1e6 * self._clock())
        self._offset_us = max(ahead_us, ahead_us if self._offset_us is None else self._offset_us)
        self._got = self._got[0] + tuples, self._got[1] + size

    def poll(self, fetch: Callable[[], None], most: int, wait_s: float) -> None:
        """Fetch at most this number of tuples, and note whether that was all."""
        self.resume()
        before = self._clock(), self.time_s, self.server_us
        self._got = (0, 0)
        fetch()
        self._away(self._clock() - before[0] - wait_s)
        tuples, size = self._got
        if 2 * tuples < most and size < TAKEN_BYTES // 2:
            self.emptied_s, self.emptied_us = before[1:]
            self.has_emptied = True

    def go_on(self) -> None:
        """Let the time of arrivals pass though the task is full and takes nothing: its windows
        must close. What waits in the inbox is put into later windows.
        """
        self.emptied_us = self.server_us

    def pause(self) -> None:
        """Note that the inbox is not polled until the next poll."""
        if self._paused_at is None:
            self._paused_at = self._clock()

    def resume(self) -> None:
        """Note that the inbox is polled again."""
        if self._paused_at is not None:
            self._away(self._clock() - self._paused_at)
            self._paused_at = None

    def _away(self, seconds: float) -> None:
        if seconds > _SLOW_POLL_S:
            self._away_s += seconds

    def reached_at(self, time_s: float | None) -> list[float]:
        """Return when ``time_s`` is reached, if it is."""
        return [] if time_s is None else [time_s + self._began_s + self._away_s]

    def shown_at(self, server_us: int) -> list[float]:
        """Return when the server's clock shows this time, if that is known."""
        return [] if self._offset_us is None else [(server_us - self._offset_us) / 1e6]


class Moved:
    """The watermarks below which tuples of processing time count as if they had come then.

    They are part of the snapshot: a later attempt must put held tuples into the same windows.
    """

    def __init__(self) -> None:
        # Positions from which on tuples were moved, with the watermark of each, ascending.
        self._since: list[tuple[int, int, int]] = []

    def note(self, at: Place, watermark: int) -> None:
        """Note that tuples of an entry were moved to the watermark."""
        if not self._since or self._since[-1][2] < watermark:
            self._since.append((*at, watermark))

    def before(self, at: Place) -> int:
        """Return the watermark to which tuples of an entry were moved."""
        found = bisect_right(self._since, (*at, FOREVER))
        return self._since[found - 1][2] if found else NEVER

    def dump(self, oldest: Place) -> list[tuple[int, int, int]]:
        """Return what a later attempt needs, given the position of the oldest held tuple."""
        found = bisect_right(self._since, (*oldest, FOREVER))
        del self._since[: max(0, found - 1)]
        return self._since

    def load(self, state: Iterable[Sequence[int]]) -> None:
        """Load it."""
        self._since = [(ms, seq, at) for ms, seq, at in state]


class Telling:
    """Reports held tuples to the spouts: their messages neither time out nor count as in flight."""

    def __init__(self, around: Around, clock: Callable[[], float]) -> None:
        self._ledger = around.ledger
        timeout_s = around.topology.config.message_timeout_secs
        self._clock = clock
        self._news: list[Ids] = []
        self._look_at = self._all_at = float("-inf")
        self._every_s = timeout_s / _TELLS_PER_TIMEOUT
        # The rest of the report of all, and the parts of it that are sent together.
        self._left: list[Ids] = []
        self._at_once = 1

    @property
    def next_at(self) -> list[float]:
        """Time of the next report, if there is one."""
        if self._ledger is None:
            return []
        # Nothing is reported before ``_look_at``, not even all tuples.
        return [self._look_at if self._news or self._left else max(self._look_at, self._all_at)]

    def add(self, roots: Ids) -> None:
        """Have the spouts told about new tuples."""
        if self._ledger is not None and len(roots):
            self._news.append(roots)

    def look(self, held: Callable[[], Ids]) -> None:
        """Send the reports that are due; ``held`` returns the roots of all held tuples."""
        now = self._clock()
        if self._ledger is None or now < self._look_at:
            return
        self._look_at = now + _TELL_S
        if now >= self._all_at:
            self._all_at = now + self._every_s
            self._news.clear()
            roots = held()
            self._left = [roots[at : at + _TOLD] for at in range(0, len(roots), _TOLD)]
            # Half of the time until the next report is enough for this one.
            self._at_once = 1 + int(len(self._left) * 2 * _TELL_S / self._every_s)
        try:
            if self._news:
                self._tell(np.concatenate(self._news))
                self._news.clear()
            for _ in range(min(len(self._left), self._at_once)):
                self._tell(self._left[-1])
                self._left.pop()
        except RedisUnavailableError as error:
            log.debug(
                "could not report held tuples, will retry: %s",
                error,
                extra={"event": "redis_away"},
            )

    def _tell(self, roots: Ids) -> None:
        if self._ledger is not None and len(roots):
            self._ledger.reset_timeout(np.unique(roots).tolist(), waiting=True)
