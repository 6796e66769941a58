"""Memory of a bolt task with an order: the tuples that failed, per key. Pure.

Most of them stay in the backlog, and the task tries them again. A few are awaited, for their
messages must come again from the broker. Until then nothing else of their key may begin. A tuple
that does not come again in time is awaited no longer: its message was dead-lettered, or its values
are others now, or it was a copy of a message that was acked.

``TupleKeys`` finds the key of a tuple, by which it is ordered, and its identity, by which it is
known again: a message that is delivered again has another root, but the same values.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
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


# Key, identity, number of failures, time of the last one, True where it is awaited, and doubtful.
_RECORD = struct.Struct(f">{KEY_BYTES}s{IDENTITY_BYTES}sId??")
# A new process looks into its inbox before it gives anything up: the one before may have died of
# the awaited tuple, or late.
_LOOK_S = 2.0


@dataclass(kw_only=True, slots=True)
class FailedTuple:
    """A tuple that failed, the first of its key."""

    identity: bytes
    failures: int = 0
    # When it failed, by the clock that outlives the process.
    since_wall: float = 0.0
    # True if it had to come from the broker again.
    awaited: bool = False
    # True if it may never come: its step was repeated and did other work, and its message may have
    # been acked before.
    doubtful: bool = False
    # Its place in the backlog; None: it is not here, or an earlier process tried it.
    entry: OpenEntry | None = None
    row: int = -1
    # End of its back-off, or of the patience with it; None: it may begin.
    until: float | None = None
    # Its step failed as a whole, and it is executed in a step of its own: another tuple may be to
    # blame, which would take it along among the dead letters.
    alone: bool = False

    @property
    def holds(self) -> bool:
        """True if nothing else of its key may begin."""
        return self.awaited or self.entry is not None

    def is_over(self, now: float) -> bool:
        """Return True if its back-off has ended, or the patience with it."""
        return self.until is not None and now >= self.until

    def may_begin_at(self, position: str | None, row: int) -> bool:
        """Return True if this is its place, and its back-off is over."""
        is_here = self.entry is not None and self.entry.position == position and self.row == row
        return is_here and self.until is None


class FailedTuples:
    """Of one bolt task: one per key at most."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float],
        retry: tuple[RetryPolicy, int],
        patience_s: tuple[float, float],
    ) -> None:
        """``clock`` never goes back; ``wall`` is the same in each process.

        ``retry``: after which waits a tuple is tried again, and how often. ``patience_s``: for how
        long one that must come again is awaited, and a doubtful one, which comes soon or never.
        """
        self._clock = clock
        self._wall = wall
        self._policy, self._limit = retry
        self._patience_s, self._doubtful_s = patience_s
        self._first: dict[bytes, FailedTuple] = {}

    def __len__(self) -> int:
        return len(self._first)

    def first(self, key: bytes) -> FailedTuple | None:
        """Return the tuple of the key that failed, and comes before all others if it ``holds``."""
        return self._first.get(key)

    def failures(self, key: bytes, identity: bytes) -> int:
        """Return how often the tuple has failed."""
        one = self._first.get(key)
        return one.failures if one is not None and one.identity == identity else 0

    def is_last(self, failures: int) -> bool:
        """Return True if a tuple that failed so often is not tried again."""
        return failures > self._limit

    def tries_again(
        self, key: bytes, identity: bytes, entry: OpenEntry, row: int, *, alone: bool
    ) -> None:
        """A tuple failed, and is tried again where it is, after the back-off."""
        failures = self.failures(key, identity)
        action = next_action(failures, self._policy, self._limit)
        before = self._first.get(key)
        self._first[key] = FailedTuple(
            identity=identity,
            failures=failures + 1,
            since_wall=self._wall(),
            # Another process may find it behind its successors.
            awaited=before is not None and before.awaited and before.identity == identity,
            entry=entry,
            row=row,
            until=self._clock() + (action.after_s if isinstance(action, RequeueAfter) else 0.0),
            alone=alone,
        )

    def comes_again(self, key: bytes, identity: bytes, *, doubtful: bool = False) -> None:
        """A tuple failed with its message, which comes again: ``doubtful``, if it was not acked."""
        before = self._first.get(key)
        if before is not None and before.awaited and before.identity != identity:
            return
        one = FailedTuple(
            identity=identity, since_wall=self._wall(), awaited=True, doubtful=doubtful
        )
        one.until = self._clock() + self._patience(one)
        self._first[key] = one

    def done(self, key: bytes, identity: bytes) -> None:
        """A tuple was executed, and neither is tried again nor comes again."""
        one = self._first.get(key)
        if one is not None and (one.identity == identity or not one.awaited):
            del self._first[key]

    def due(self) -> bool:
        """Return True if back-offs have ended since the last call: their tuples may begin."""
        now = self._clock()
        due = [one for one in self._first.values() if one.entry is not None and one.is_over(now)]
        for one in due:
            one.until = None
        return bool(due)

    @property
    def alone(self) -> FailedTuple | None:
        """Return a tuple that may begin, in a step of its own."""
        failed = self._first.values()
        return next((one for one in failed if one.alone and one.until is None), None)

    def late(self) -> list[bytes]:
        """Return the keys whose awaited tuple has not come in time."""
        now = self._clock()
        return [key for key, one in self._first.items() if one.entry is None and one.is_over(now)]

    def is_here(self, key: bytes) -> None:
        """The awaited one has come, and is under way or waits for its turn."""
        one = self._first[key]
        one.until = self._clock() + self._patience(one)

    def lapse(self) -> list[bytes]:
        """Stop waiting for the tuples that have not come in time; return their keys."""
        late = self.late()
        for key in late:
            del self._first[key]
        return late

    @property
    def next_at(self) -> float | None:
        """Time at which the next back-off ends, or patience."""
        moments = (one.until for one in self._first.values())
        return min((at for at in moments if at is not None), default=None)

    def dump(self) -> bytes:
        """Return all as bytes; empty if there are none."""
        return b"".join(
            _RECORD.pack(key, one.identity, one.failures, one.since_wall, one.awaited, one.doubtful)
            for key, one in self._first.items()
        )

    def load(self, dumped: bytes) -> None:
        """Take over from an earlier process. Raises ValueError for an invalid dump."""
        if len(dumped) % _RECORD.size:
            raise ValueError("not an order: it ends too early")
        now, wall = self._clock(), self._wall()
        for key, *facts in _RECORD.iter_unpack(dumped):
            identity, failures, since_wall, awaited, doubtful = facts
            one = self._first[key] = FailedTuple(
                identity=identity,
                failures=failures,
                since_wall=since_wall,
                awaited=awaited,
                doubtful=doubtful,
            )
            if awaited:
                left_s = self._patience(one) - max(0.0, wall - since_wall)
                one.until = now + max(_LOOK_S, left_s)

    def _patience(self, one: FailedTuple) -> float:
        return self._doubtful_s if one.doubtful else self._patience_s
