"""Memory of a bolt task with an order: the tuples that failed, per key. Pure.

``Tries`` has the tuples that the task itself tries again. ``Awaited`` has the few whose messages
must come again from the broker: until then nothing else of their key may begin. A tuple that does
not come again in time is awaited no longer: its message was dead-lettered, or its values are others
now, or it was a copy of a message that was acked.

``TupleKeys`` finds the key of a tuple, by which it is ordered, and its identity, by which it is
known again: a message that is delivered again has another root, but the same values.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tiercel.acker.inbox.chunk import Chunk
from tiercel.queues.retry import RequeueAfter, RetryPolicy, next_action
from tiercel.queues.values.python_values import python_value
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.running.backlog import OpenEntry
from tiercel.spark_jobs.topology.bolt_settings import ordered_by_of
from tiercel.spark_jobs.topology.graph import SpoutSpec, Subscription, Topology
from tiercel.spark_jobs.topology.grouping import key_digest

IDENTITY_BYTES = 8
KEY_BYTES = 16
_SALT_BYTES = 64


class TupleKeys:
    """Keys of the tuples of one bolt, whichever of its streams they come on."""

    def __init__(self, topology: Topology, component: str) -> None:
        spec = topology.bolts[component]
        names = ordered_by_of(spec)
        self._streams = {
            (source.component, source.stream): _StreamKeys(
                topology.spec(source.component).streams[source.stream],
                names,
                f"{source.component}\0{source.stream}",
                _changing_fields(topology, source),
            )
            for source in spec.subscriptions
        }

    def key(self, tup: Tuple) -> bytes | None:
        """Return the key of a tuple; None for a tick, which is in no order."""
        stream = self._streams.get((tup.source_component, tup.source_stream))
        return None if stream is None else stream.key(tup.values)

    def identity(self, tup: Tuple) -> bytes:
        """Return the name by which a tuple that has a key is known again."""
        return self._streams[tup.source_component, tup.source_stream].identity(tup.values)

    def keys_in(self, chunk: Chunk) -> Sequence[bytes | None]:
        """Return the key of each row."""
        stream = self._stream_of(chunk)
        if stream is None:
            return [None] * chunk.values.num_rows
        return stream.keys_in(chunk)

    def identity_in(self, chunk: Chunk, row: int) -> bytes:
        """Return the name by which one row is known again."""
        stream = self._streams[chunk.route.component, chunk.route.stream]
        return stream.identity([python_value(column, row) for column in chunk.values.columns])

    def _stream_of(self, chunk: Chunk) -> _StreamKeys | None:
        return self._streams.get((chunk.route.component, chunk.route.stream))


class _StreamKeys:
    """Keys of the tuples of one stream."""

    def __init__(
        self, schema: Schema, names: Sequence[str], source: str, changing: AbstractSet[str]
    ) -> None:
        """``source`` tells tuples of two streams apart that have the same values. ``changing``
        fields have others when a tuple comes again.
        """
        self._width = len(schema.names)
        self._positions = [schema.position(name) for name in names]
        self.key: Callable[[Sequence[Any]], bytes] = key_digest(schema, names)
        self._digest = key_digest(schema, [each for each in schema.names if each not in changing])
        self._salt = hashlib.blake2b(source.encode(), digest_size=_SALT_BYTES).digest()

    def identity(self, values: Sequence[Any]) -> bytes:
        digest = self._digest(values)
        return hashlib.blake2b(digest, digest_size=IDENTITY_BYTES, key=self._salt).digest()

    def keys_in(self, chunk: Chunk) -> list[bytes]:
        columns = [
            (position, chunk.values.column(position).to_pylist()) for position in self._positions
        ]
        values: list[Any] = [None] * self._width
        keys = []
        for row in range(chunk.values.num_rows):
            for position, column in columns:
                values[position] = column[row]
            keys.append(self.key(values))
        return keys


def _changing_fields(topology: Topology, source: Subscription) -> AbstractSet[str]:
    spec = topology.spec(source.component)
    if not isinstance(spec, SpoutSpec) or source.stream != DEFAULT_STREAM:
        return frozenset()
    return spec.spout.changing_fields


# Key, identity, time of its failure, True where it is doubtful.
_PLACE = struct.Struct(f">{KEY_BYTES}s{IDENTITY_BYTES}sd?")
# Key, identity, number of failures.
_TRIED = struct.Struct(f">{KEY_BYTES}s{IDENTITY_BYTES}sI")
# A new process looks into its inbox before it gives anything up: the one before may have died of
# the awaited tuple, or late.
_LOOK_S = 2.0


@dataclass(slots=True)
class AwaitedPlace:
    """One tuple whose message comes again."""

    identity: bytes
    # When it failed, or was seen to be here.
    since: float
    # The same by the clock that outlives the process.
    since_wall: float
    # True if it may never come again: its step was repeated and did other work, and its message may
    # have been acked before.
    doubtful: bool


class Awaited:
    """Of one bolt task: a line of tuples per key, the next one first."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float],
        patience_s: float,
        doubtful_s: float | None = None,
    ) -> None:
        """``clock`` never goes back; ``wall`` is the same in each process.

        A tuple is awaited for ``patience_s``, after which its successors go on. A doubtful one
        comes soon or never, and is awaited for ``doubtful_s``; None: like the others.
        """
        self._clock = clock
        self._wall = wall
        self._patience_s = patience_s
        self._doubtful_s = patience_s if doubtful_s is None else min(patience_s, doubtful_s)
        self._lines: dict[bytes, deque[AwaitedPlace]] = {}

    def __len__(self) -> int:
        """Number of keys with awaited tuples."""
        return len(self._lines)

    def __contains__(self, key: object) -> bool:
        return key in self._lines

    def first(self, key: bytes) -> bytes | None:
        """Return the identity of the key's next tuple; None: any tuple may be next."""
        line = self._lines.get(key)
        return None if line is None else line[0].identity

    def failed(self, key: bytes, identity: bytes, *, doubtful: bool = False) -> None:
        """A tuple failed with its message: it keeps its place, or has one before all others.

        ``doubtful``: its message may not come again.
        """
        line = self._lines.setdefault(key, deque())
        now, wall = self._clock(), self._wall()
        for place in line:
            if place.identity == identity:
                place.since, place.since_wall, place.doubtful = now, wall, doubtful
                return
        line.appendleft(AwaitedPlace(identity, now, wall, doubtful))

    def done(self, key: bytes, identity: bytes) -> None:
        """A tuple was executed and will not be delivered again."""
        line = self._lines.get(key)
        place = next((one for one in line or () if one.identity == identity), None)
        if line is not None and place is not None:
            line.remove(place)
            if not line:
                del self._lines[key]

    def late(self) -> list[bytes]:
        """Return the keys whose first tuple has not come in time, or has not succeeded."""
        now = self._clock()
        return [key for key, line in self._lines.items() if now >= self._until(line[0])]

    def is_here(self, key: bytes) -> None:
        """The first one has come, and is under way or waits for its turn."""
        self._lines[key][0].since = self._clock()

    def lapse(self) -> list[bytes]:
        """Stop waiting for the first tuples that have not come in time; return their keys."""
        late = self.late()
        for key in late:
            line = self._lines[key]
            line.popleft()
            if not line:
                del self._lines[key]
        return late

    @property
    def next_at(self) -> float | None:
        """Time at which the next one lapses."""
        return min((self._until(line[0]) for line in self._lines.values()), default=None)

    def dump(self) -> bytes:
        """Return the lines as bytes; empty if there are none."""
        return b"".join(
            _PLACE.pack(key, one.identity, one.since_wall, one.doubtful)
            for key, line in self._lines.items()
            for one in line
        )

    def load(self, dumped: bytes) -> None:
        """Take over the lines of an earlier process. Raises ValueError for an invalid dump."""
        now, wall = self._clock(), self._wall()
        for key, identity, since_wall, doubtful in _records(_PLACE, dumped):
            place = AwaitedPlace(identity, now - max(0.0, wall - since_wall), since_wall, doubtful)
            place.since += max(0.0, now + _LOOK_S - self._until(place))
            self._lines.setdefault(key, deque()).append(place)

    def _until(self, place: AwaitedPlace) -> float:
        return place.since + (self._doubtful_s if place.doubtful else self._patience_s)


@dataclass(slots=True)
class TriedTuple:
    """A tuple that failed and is tried again, the first of its key."""

    identity: bytes
    failures: int
    # Its place in the backlog; None: an earlier process tried it, and this one not yet.
    entry: OpenEntry | None = None
    row: int = -1
    # End of the back-off; None: it may begin.
    next_at: float | None = None
    # Its step failed as a whole, and it is executed in a step of its own: another tuple may be to
    # blame, which would take it along among the dead letters.
    alone: bool = False

    def is_at(self, position: str | None, row: int) -> bool:
        """Return True if this is the place of the tuple."""
        return self.entry is not None and self.entry.position == position and self.row == row


class Tries:
    """Of one bolt task: the tuples that failed and wait in its backlog, one per key at most."""

    def __init__(self, clock: Callable[[], float], policy: RetryPolicy, limit: int) -> None:
        """A tuple is tried again ``limit`` times at most."""
        self._clock = clock
        self._policy = policy
        self._limit = limit
        self._tried: dict[bytes, TriedTuple] = {}
        # Keys of the ones whose back-off goes on.
        self._resting: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._tried)

    def __contains__(self, key: object) -> bool:
        return key in self._tried

    @property
    def resting(self) -> AbstractSet[bytes]:
        """The keys of tuples whose back-off goes on."""
        return self._resting

    def failures(self, key: bytes, identity: bytes) -> int:
        """Return how often the tuple has failed."""
        tried = self._tried.get(key)
        return tried.failures if tried is not None and tried.identity == identity else 0

    def is_last(self, failures: int) -> bool:
        """Return True if a tuple that failed so often is not tried again."""
        return failures > self._limit

    def first(self, key: bytes) -> TriedTuple | None:
        """Return the tuple of the key that comes before all others, if it was tried here."""
        tried = self._tried.get(key)
        return tried if tried is not None and tried.entry is not None else None

    @property
    def alone(self) -> TriedTuple | None:
        """Return a tuple that may begin, in a step of its own."""
        tried = self._tried.values()
        return next((one for one in tried if one.alone and one.next_at is None), None)

    def failed(
        self, key: bytes, identity: bytes, entry: OpenEntry, row: int, *, alone: bool
    ) -> None:
        """A tuple failed, and is tried again where it is, after the back-off."""
        failures = self.failures(key, identity) + 1
        action = next_action(failures - 1, self._policy, self._limit)
        wait_s = action.after_s if isinstance(action, RequeueAfter) else 0.0
        next_at = self._clock() + wait_s
        self._tried[key] = TriedTuple(identity, failures, entry, row, next_at, alone)
        self._resting.add(key)

    def over(self, key: bytes) -> None:
        """The first tuple of the key was executed, and is not tried again."""
        self._tried.pop(key, None)
        self._resting.discard(key)

    def due(self) -> list[TriedTuple]:
        """Return the tuples whose back-off has ended since the last call: they may begin."""
        now = self._clock()
        due = []
        for key in list(self._resting):
            tried = self._tried[key]
            if tried.next_at is not None and now >= tried.next_at:
                tried.next_at = None
                self._resting.discard(key)
                due.append(tried)
        return due

    @property
    def next_at(self) -> float | None:
        """Time at which the next back-off ends."""
        moments = [self._tried[key].next_at for key in self._resting]
        return min((at for at in moments if at is not None), default=None)

    def dump(self) -> bytes:
        """Return the numbers of failures as bytes; empty if there are none."""
        return b"".join(
            _TRIED.pack(key, one.identity, one.failures) for key, one in self._tried.items()
        )

    def load(self, dumped: bytes) -> None:
        """Go on counting where an earlier process ended. Raises ValueError for an invalid dump."""
        for key, identity, failures in _records(_TRIED, dumped):
            self._tried[key] = TriedTuple(identity, failures)


def _records(layout: struct.Struct, dumped: bytes) -> Iterator[tuple[Any, ...]]:
    if len(dumped) % layout.size:
        raise ValueError("not an order: it ends too early")
    return layout.iter_unpack(dumped)
