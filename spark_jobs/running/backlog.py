"""The input of one bolt task: tuples taken from its inbox but not committed yet, and ticks.

Chunks that this topology cannot have written are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.errors import BadChunkError
from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, Rows, decode
from tiercel.acker.inbox.contract import Covered, Entry, Inboxes, Rest
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.streams import SYSTEM, SYSTEM_STREAMS, SYSTEM_TASK, TICK
from tiercel.spark_jobs.emitting.fold import select
from tiercel.spark_jobs.topology.graph import Topology, line_at

log = logging.getLogger(__name__)
# Reads a payload: returns the chunk, or None and the roots to release.
Reader = Callable[[bytes], tuple[Chunk | None, list[int]]]


@dataclass(slots=True)
class OpenEntry:
    """An inbox entry whose chunk has rows that are not done."""

    position: str
    chunk: Chunk
    # Bytes of the encoded chunk.
    size: int
    # Rows that are not done, ascending; never empty.
    rows: Rows
    # Ordering keys of all rows of the chunk; None for a bolt without an order.
    keys: Sequence[bytes | None] | None = None
    # True if the entry was claimed from the line and may be given back.
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one entry that a step takes."""

    entry: OpenEntry
    # Some of the entry's waiting rows, usually the first ones. Ascending.
    rows: Rows

    @property
    def chunk(self) -> Chunk:
        """The chunk with only these rows."""
        return part_of(self.entry.chunk, self.rows)

    def only(self, mask: NDArray[np.bool_]) -> list[Share]:
        """Return a list with the share of the rows where the mask is true, or an empty list."""
        return [Share(self.entry, self.rows[mask])] if mask.any() else []


class Backlog:
    """Entries in the order of the inbox. One thread only."""

    def __init__(self, done: Mapping[str, bytes]) -> None:
        """``done`` has the bitmaps of entries that earlier attempts covered in part."""
        self._done = dict(done)
        # By position, in the order of the inbox; an entry without waiting rows is removed.
        self._open: dict[str, OpenEntry] = {}
        self._passed_over: list[Entry] = []
        # Number of waiting tuples.
        self.tuples = 0
        # True if there are skipped entries for the next step to cover.
        self.must_leave = False

    def add(self, entries: Iterable[Entry], read: Reader) -> list[int]:
        """Add entries; return the roots of the entries that ``read`` skips, to be released.

        The next step covers the skipped entries, so that they leave the inbox with it.
        """
        strange: list[int] = []
        for entry in entries:
            chunk, roots = read(entry.payload)
            if chunk is None:
                strange += roots
                self._pass_over(entry)
                continue
            if entry.first is not None:
                rows = np.arange(entry.first, entry.first + entry.tuples)
                if not rows.size or rows[-1] >= chunk.values.num_rows:
                    self._pass_over(entry)
                    continue
                chunk = part_of(chunk, rows)
            done = self._done.get(entry.position)
            total = chunk.values.num_rows
            rows = np.arange(total) if done is None else rows_left(total, done)
            if rows.size:
                open_entry = OpenEntry(
                    entry.position,
                    chunk,
                    len(entry.payload),
                    rows,
                    claimed=entry.first is not None,
                )
                self._open[entry.position] = open_entry
                self.tuples += rows.size
        return strange

    def first(self, most: int) -> list[Share]:
        """Return the first ``most`` waiting tuples, or all if there are fewer."""
        shares: list[Share] = []
        for open_entry in self._open.values():
            if most <= 0:
                break
            shares.append(Share(open_entry, open_entry.rows[:most]))
            most -= len(shares[-1].rows)
        return shares

    def one_of(self, identities: AbstractSet[int]) -> Share | None:
        """Return a share of the first waiting tuple that has one of these identities."""
        wanted = np.fromiter(identities, np.uint64)
        for open_entry in self._open.values():
            known = open_entry.chunk.lineage.seeds[open_entry.rows]
            rows = open_entry.rows[np.isin(known, wanted)]
            if rows.size:
                return Share(open_entry, rows[:1])
        return None

    def of(self, rows: Mapping[str, Sequence[int]]) -> list[Share]:
        """Return the shares of waiting tuples, given by rows per position, both ascending."""
        return [Share(self._open[position], np.array(some)) for position, some in rows.items()]

    def may_begin(self, entry: OpenEntry) -> Rows:
        """Return the waiting rows of an entry that a call may begin with."""
        return entry.rows

    def latest(self, count: int) -> list[OpenEntry]:
        """Return the last ``count`` entries, in order."""
        return list(islice(reversed(self._open.values()), count))[::-1]

    def exactly(self, sealed: Covered) -> list[Share]:
        """Return the tuples that a sealed step covers and no earlier step has covered."""
        shares = []
        whole = set(sealed.whole)
        for open_entry in self._open.values():
            if open_entry.position in whole:
                shares.append(Share(open_entry, open_entry.rows))
            elif open_entry.position in sealed.part:
                covered = rows_in(sealed.part[open_entry.position])
                rows = open_entry.rows[np.isin(open_entry.rows, covered)]
                if rows.size:
                    shares.append(Share(open_entry, rows))
        return shares

    def take_out(self, shares: Sequence[Share], step: int, ticks: int) -> Covered:
        """Remove these tuples and the skipped entries: a step that covers them is about to commit.

        Return the set of tuples that the step covers.
        """
        whole = [entry.position for entry in self._passed_over]
        part: dict[str, bytes] = {}
        tuples = sum([entry.tuples for entry in self._passed_over])
        size = sum([len(entry.payload) for entry in self._passed_over])
        for share in shares:
            entry = share.entry
            entry.rows = _without(entry.rows, share.rows)
            self.tuples -= len(share.rows)
            total = entry.chunk.values.num_rows
            if entry.rows.size:
                part[entry.position] = _bitmap(total, entry.rows)
            else:
                whole.append(entry.position)
                tuples += total
                size += entry.size
                del self._open[entry.position]
        self._passed_over.clear()
        self.must_leave = False
        return Covered(step=step, whole=whole, part=part, ticks=ticks, tuples=tuples, bytes=size)

    def rests(self, begun: Sequence[Share]) -> list[Rest]:
        """Return the claimed tuples that wait after the begun tuples, to be given back."""
        begun_of = {share.entry.position: int(share.rows[-1]) for share in begun}
        rests = []
        for entry in self._open.values():
            last = begun_of.get(entry.position, -1)
            stays, rest = entry.rows[entry.rows <= last], entry.rows[entry.rows > last]
            total = entry.chunk.values.num_rows
            # Only if all rows up to the chunk's end wait: otherwise done rows would be given back.
            if entry.claimed and rest.size and total - rest[0] == len(rest):
                done = _bitmap(total, stays) if stays.size else b""
                rests.append(Rest(position=entry.position, first=int(rest[0]), done=done))
        return rests

    def gone(self, rests: Sequence[Rest]) -> None:
        """Remove the tuples that were given back."""
        for rest in rests:
            entry = self._open[rest.position]
            rows = entry.rows[entry.rows < rest.first]
            self.tuples -= len(entry.rows) - len(rows)
            entry.rows = rows
            if not rows.size:
                del self._open[rest.position]

    def _pass_over(self, entry: Entry) -> None:
        self._passed_over.append(entry)
        self.must_leave = True

    def cover(self, sealed: Covered) -> None:
        """Note that a sealed step was repeated: its rows count as done when their entries are
        taken.
        """
        self._done.update(sealed.part)

    def __bool__(self) -> bool:
        return self.tuples > 0 or self.must_leave

    def __iter__(self) -> Iterator[OpenEntry]:
        """Yield the entries with waiting tuples, in order."""
        return iter(self._open.values())

    @property
    def entries(self) -> int:
        """Number of entries with waiting tuples."""
        return len(self._open)

    @property
    def oldest(self) -> str | None:
        """Position of the first entry with waiting tuples; None if there is none."""
        return next(iter(self._open), None)


def chunks_of(shares: Sequence[Share]) -> tuple[list[Chunk], int]:
    """Return the chunks of the shares, and their total number of tuples."""
    return [share.chunk for share in shares], sum([share.rows.size for share in shares])


def first_of(shares: Sequence[Share], executed: int) -> list[Share]:
    """Return the shares of the first ``executed`` tuples."""
    done = []
    for share in shares:
        if executed <= 0:
            break
        done.append(Share(share.entry, share.rows[:executed]))
        executed -= len(share.rows)
    return done


def all_but(shares: Sequence[Share], numbers: Sequence[int]) -> list[Share]:
    """Return the shares without the tuples at these indices."""
    kept = []
    first = 0
    for share in shares:
        own = np.arange(first, first + len(share.rows))
        kept += share.only(~np.isin(own, numbers))
        first += len(share.rows)
    return kept


def rows_left(total: int, done: bytes) -> Rows:
    """Return the rows of a chunk of ``total`` rows that are not set in a bitmap."""
    bits = np.unpackbits(np.frombuffer(done, np.uint8), bitorder="little")[:total]
    padded = np.zeros(total, np.uint8)
    padded[: len(bits)] = bits
    return np.flatnonzero(padded == 0)


def rows_in(bitmap: bytes) -> Rows:
    """Return the rows that are set in a bitmap."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little"))


def part_of(chunk: Chunk, rows: Rows) -> Chunk:
    """Return a chunk with only these rows, which are ascending."""
    if len(rows) == chunk.values.num_rows:
        return chunk
    together = rows[-1] - rows[0] + 1 == len(rows)
    values = (
        chunk.values.slice(int(rows[0]), len(rows))
        if together
        else chunk.values.take(pa.array(rows))
    )
    return Chunk(route=chunk.route, values=values, lineage=select(chunk.lineage, rows))


def _without(rows: Rows, taken: Rows) -> Rows:
    """Return the rows that are not in ``taken``, which usually has the first ones."""
    first = len(taken)
    if first == len(rows) or np.array_equal(rows[:first], taken):
        return rows[first:]
    return np.setdiff1d(rows, taken, assume_unique=True)


def _bitmap(total: int, left: Rows) -> bytes:
    """Return a bitmap of ``total`` rows with all set except the rows in ``left``."""
    bits = np.ones(total, np.uint8)
    bits[left] = 0
    return np.packbits(bits, bitorder="little").tobytes()


def arrival(
    payload: bytes, schemas: Mapping[tuple[str, str], Schema], task: int, line: int | None
) -> tuple[Chunk | None, list[int]]:
    """Return the chunk if the topology with these ``schemas`` (``schemas_of``) can have written it
    for ``task`` or its ``line``; otherwise None, and the roots to release.

    An unreadable chunk gives no roots: its messages time out. A chunk from another version of the
    topology gives its roots. Each is logged, and affects no other chunk.
    """
    try:
        chunk = decode(payload)
    except BadChunkError as error:
        log.warning(
            "task %d passes over %d bytes: %s; messages in them time out and are delivered again",
            task, len(payload),
            error, extra={"event": "chunk_unreadable"},
        )  # fmt: skip
        return None, []
    route = chunk.route
    known = schemas.get((route.component, route.stream))
    if (
        route.target_task in (task, line)
        and known is not None
        and chunk.values.schema.equals(known.arrow)
    ):
        return chunk, []
    log.warning(
        "task %d passes over %d tuples of stream %.50r of %.50r, which this version of the topology"
        " does not send there; their messages are delivered again",
        task, chunk.values.num_rows, route.stream, route.component,
        extra={"event": "chunk_foreign"},
    )  # fmt: skip
    return None, [int(root) for root in dict.fromkeys(chunk.lineage.roots.tolist())]


def waiting_roots(inboxes: Inboxes, run: str, topology: Topology, task: int) -> set[int]:
    """Return the roots of the first ten thousand tuples in an inbox and its line, taken or not.

    Read-only. Raises StaleAttemptError, RedisUnavailableError.
    """
    roots: set[int] = set()
    line = line_at(topology, task)
    # No other inbox: with the tuples of all bolts, there would be no room for its own.
    for _, entries in inboxes.drain(run, [task] if line is None else [task, line]):
        for entry in entries:
            with suppress(BadChunkError):
                roots.update(decode(entry.payload).lineage.roots.tolist())
    return roots


def reader_of(topology: Topology, task: int, line: int | None) -> Reader:
    """Return the reader of a task's entries; ``line`` is the line that the task claims from."""
    return partial(arrival, schemas=schemas_of(topology), task=task, line=line)


def schemas_of(topology: Topology) -> dict[tuple[str, str], Schema]:
    """Return the schema of each stream, by component name and stream name."""
    streams: dict[str, Mapping[str, Schema]] = {SYSTEM: SYSTEM_STREAMS}
    streams |= {name: spout.streams for name, spout in topology.spouts.items()}
    streams |= {name: bolt.streams for name, bolt in topology.bolts.items()}
    return {(name, stream): schema for name, of in streams.items() for stream, schema in of.items()}


class TickClock:
    """The ticks of one bolt task: one every ``tick_tuple_freq_secs``.

    A task that was busy for several periods gets one tick, not one per period. Times are seconds on
    the caller's clock.
    """

    def __init__(self, task: int, freq_s: float, start_s: float) -> None:
        """The first tick is due one period after ``start_s``."""
        self._period_s = freq_s
        self._task = task
        self.next_at = start_s + freq_s
        # Number of ticks that committed steps have executed.
        self.count = 0
        # True while a call executes a tick that no step has committed yet.
        self.under_way = False

    def due(self, now: float) -> list[Chunk]:
        """Return the tick to execute now, or an empty list."""
        return [self.tick()] if now >= self.next_at and not self.under_way else []

    def ticked(self, now: float) -> None:
        """Note that the tick was executed. The next tick is due at the next whole period."""
        self.count += 1
        self.next_at += (max(0.0, now - self.next_at) // self._period_s + 1) * self._period_s

    def tick(self) -> Chunk:
        """Return a tick."""
        return tick_for(self._task, self._period_s)


def tick_for(task: int, rate_secs: float) -> Chunk:
    """Return a tick for one bolt task."""
    none = np.empty(0, np.uint64)
    return Chunk(
        route=Route(component=SYSTEM, stream=TICK, source_task=SYSTEM_TASK, target_task=task),
        values=SYSTEM_STREAMS[TICK].batch([[float(rate_secs)]]),
        lineage=Lineage(offsets=np.zeros(2, np.int32), roots=none, edges=none),
    )
