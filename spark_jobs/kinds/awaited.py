"""The failed tuples of a bolt task with an order, one per key; the decisions of ``Retry``. Pure.

Most failed tuples stay in the backlog, and the task retries them. A few are awaited: the broker has
to redeliver their messages, and until then no other tuple of their key may begin. The task gives up
a tuple that does not come back in time: its message was dead-lettered, its values have changed, or
it was a copy of a message that was acked.

``TupleKeys`` computes two digests of a tuple: its key, which defines the order, and its identity,
by which the task recognizes a redelivered tuple. A redelivery has another root but the same values.
``HeldTuples`` has those of the tuples that a ``Bolt`` holds and whose values it may have changed.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiercel.acker.inbox.chunk import Chunk
from tiercel.queues.habits import habits_of
from tiercel.queues.retry import RequeueAfter, RetryPolicy, next_action
from tiercel.queues.values.python_values import python_value
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.bolts.verdicts import TryAgain
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import raised, reason_of
from tiercel.spark_jobs.running.backlog import OpenEntry
from tiercel.spark_jobs.running.step import Done
from tiercel.spark_jobs.topology.bolt_settings import ordered_by_of
from tiercel.spark_jobs.topology.graph import SpoutSpec, Subscription, Topology
from tiercel.spark_jobs.topology.grouping import key_digest

# Only a bolt with a ``Retry`` loads tenacity.
if TYPE_CHECKING:
    from tiercel.spark_jobs.bolts.retry import Retry

log = logging.getLogger(__name__)

IDENTITY_BYTES = 8
KEY_BYTES = 16
_SALT_BYTES = 64
# A task waits for a tuple for this many message timeouts, and at least for this time. By then, a
# dead spout worker has restarted, and its messages have been redelivered.
_TIMEOUTS = 2.0
_PATIENCE_S = 60.0
# The same for messages that a user's own spout replays: shorter, as the successors are held.
_PATIENCE_PART = 0.5
# The same for a message that may have been acked: longer than most back-offs.
_DOUBTFUL_S = 16.0


class TupleKeys:
    """Computes the keys and identities of tuples on all input streams of one bolt."""

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
        """Return the key of a tuple; None for a tick, which has no order."""
        stream = self._streams.get((tup.source_component, tup.source_stream))
        return None if stream is None else stream.key(tup.values)

    def identity(self, tup: Tuple) -> bytes:
        """Return the identity of a tuple that has a key."""
        return self._streams[tup.source_component, tup.source_stream].identity(tup.values)

    def keys_in(self, chunk: Chunk) -> Sequence[bytes | None]:
        """Return the key of each row of a chunk."""
        stream = self._stream_of(chunk)
        if stream is None:
            return [None] * chunk.values.num_rows
        return stream.keys_in(chunk)

    def identity_in(self, chunk: Chunk, row: int) -> bytes:
        """Return the identity of one row of a chunk."""
        stream = self._streams[chunk.route.component, chunk.route.stream]
        return stream.identity([python_value(column, row) for column in chunk.values.columns])

    def _stream_of(self, chunk: Chunk) -> _StreamKeys | None:
        return self._streams.get((chunk.route.component, chunk.route.stream))


class _StreamKeys:
    """Computes the keys and identities of tuples on one stream."""

    def __init__(
        self, schema: Schema, names: Sequence[str], source: str, changing: AbstractSet[str]
    ) -> None:
        """Compute keys from the fields ``names``.

        ``source`` separates tuples of two streams with equal values. The identity leaves out the
        ``changing`` fields, whose values differ on redelivery.
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


# Seed, key, identity.
_HELD = struct.Struct(f">Q{KEY_BYTES}s{IDENTITY_BYTES}s")


class HeldTuples:
    """The keys and identities of the tuples that a ``Bolt`` holds, as the tuples came: the bolt may
    change a list in a tuple before it fails it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def get(self, done: Done, row: int) -> tuple[bytes, bytes] | None:
        """Return key and identity of a tuple held since an earlier step; None for a tick."""
        return self._known.get(int(done.lineage.seeds[row]))

    def note(self, done: Done, new: Mapping[int, tuple[bytes, bytes]]) -> None:
        """Note which tuples are held after a step; ``new`` has its own ones, by their rows.

        A step that is aborted changes nothing.
        """
        record = done.record
        if record.aborted:
            return
        seeds = done.lineage.seeds
        known = ((row, new.get(row) or self.get(done, row)) for row in record.open_rows)
        self._known = {int(seeds[row]): each for row, each in known if each is not None}

    def dump(self) -> bytes:
        """Serialize them; the result is empty if there are none."""
        return b"".join(_HELD.pack(seed, *each) for seed, each in self._known.items())

    def load(self, dumped: bytes) -> None:
        """Load the dump of an earlier process. Raises ValueError if it is invalid."""
        if len(dumped) % _HELD.size:
            raise ValueError("not an order: its held tuples end too early")
        self._known = {seed: (key, one) for seed, key, one in _HELD.iter_unpack(dumped)}


# Key, identity, failures, wall time of the last failure, awaited, doubtful.
_RECORD = struct.Struct(f">{KEY_BYTES}s{IDENTITY_BYTES}sId??")
# A new process reads its inbox before it gives up a tuple. The tuple may be there: it killed the
# previous process, or that process died late.
_LOOK_S = 2.0


@dataclass(kw_only=True, slots=True)
class FailedTuple:
    """A failed tuple, the first of its key."""

    identity: bytes
    failures: int = 0
    # Attempts since the last failure, and the sum of the waits between them: see ``Retry``.
    attempts: int = 0
    waited_s: float = 0.0
    # Time of the last failure, on the wall clock, which is the same in the next process.
    since_wall: float = 0.0
    # True if the broker has to redeliver the message.
    awaited: bool = False
    # True if the tuple may never come back: its step was repeated with other results, and its
    # message may have been acked the first time.
    doubtful: bool = False
    # Entry and row in the backlog. None: the tuple is not there, or an earlier process tried it.
    entry: OpenEntry | None = None
    row: int = -1
    # Time at which the back-off ends, or the task gives the tuple up. None: the tuple may begin.
    until: float | None = None
    # True if the whole step failed. The tuple is then retried in a step of its own: otherwise
    # another tuple that makes each step fail would get this one dead-lettered too.
    alone: bool = False

    @property
    def holds(self) -> bool:
        """True if no other tuple of the key may begin."""
        return self.awaited or self.entry is not None

    def is_over(self, now: float) -> bool:
        """Return True if ``until`` is set and has passed."""
        return self.until is not None and now >= self.until

    def may_begin_at(self, position: str | None, row: int) -> bool:
        """Return True if the tuple is at this place and its back-off is over."""
        is_here = self.entry is not None and self.entry.position == position and self.row == row
        return is_here and self.until is None


class RetryDecisions:
    """Decides about the failed tuples of one step, by the bolt's ``Retry``.

    Tuples that failed together, with one error, wait for the same time: a batch stays a batch.
    """

    def __init__(self, retry: Retry | None, record: Record) -> None:
        self._retry = retry
        self._record = record
        # By the id of the error, and the number of attempts. The errors are kept, so that no other
        # one gets an id of theirs.
        self._waits_s: dict[tuple[int, int], tuple[BaseException, float | None]] = {}

    def wait_s(self, row: int, attempts: int, waited_s: float) -> float | None:
        """Return the time until the next attempt at a failed row; None if the row has failed.

        ``attempts`` includes this one; ``waited_s`` is the sum of the waits between them.
        """
        record = self._record
        verdict = record.verdicts.get(row)
        if self._retry is None or not isinstance(verdict, TryAgain):
            return None
        # The error's traceback refers to the record: only the garbage collector could free both.
        del record.verdicts[row]
        error = verdict.error
        known = (id(error), attempts)
        if known not in self._waits_s:
            self._waits_s[known] = (error, self._asked(self._retry, error, attempts, waited_s))
        _, wait_s = self._waits_s[known]
        if wait_s is None and attempts > 1:
            record.reasons[row] = f"after {attempts} attempts: {record.reasons[row]}"
        return wait_s

    def _asked(
        self, retry: Retry, error: BaseException, attempts: int, waited_s: float
    ) -> float | None:
        try:
            return retry.next_wait_s(error, attempts, waited_s)
        except raised() as again:
            log.warning(
                "%s: a tuple is not retried: the wait of its Retry raised %s for %s",
                self._record.component, reason_of(again), reason_of(error),
                extra={"event": "retry_failed"},
            )  # fmt: skip
            return None


class FailedTuples:
    """The failed tuples of one bolt task, at most one per key."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float],
        retry: tuple[RetryPolicy, int],
        patience_s: tuple[float, float],
    ) -> None:
        """``clock`` is monotonic; ``wall`` is the same in all processes.

        ``retry`` has the back-off policy and the delivery limit. ``patience_s`` has the time to
        wait for an awaited tuple, and the shorter time for a doubtful one.
        """
        self._clock = clock
        self._wall = wall
        self._policy, self._limit = retry
        self._patience_s, self._doubtful_s = patience_s
        self._first: dict[bytes, FailedTuple] = {}

    def __len__(self) -> int:
        return len(self._first)

    def first(self, key: bytes) -> FailedTuple | None:
        """Return the failed tuple of a key; if it ``holds``, it comes before all others."""
        return self._first.get(key)

    def failures(self, key: bytes, identity: bytes) -> int:
        """Return how often a tuple has failed."""
        one = self._first.get(key)
        return one.failures if one is not None and one.identity == identity else 0

    def attempts(self, key: bytes, identity: bytes) -> tuple[int, float]:
        """Return a tuple's attempts since its last failure, and the sum of the waits after them."""
        one = self._first.get(key)
        if one is None or one.identity != identity:
            return 0, 0.0
        return one.attempts, one.waited_s

    @property
    def waiting(self) -> int:
        """Number of tuples that wait for their next attempt."""
        failed = self._first.values()
        return sum(one.entry is not None and one.until is not None for one in failed)

    def is_last(self, failures: int) -> bool:
        """Return True if a tuple with this many failures is not retried."""
        return failures > self._limit

    def tries_again(  # noqa: PLR0913 - the tuple, its place, and its wait
        self,
        key: bytes,
        identity: bytes,
        entry: OpenEntry,
        row: int,
        *,
        alone: bool,
        wait_s: float | None = None,
    ) -> None:
        """Note a failed tuple that is retried in place.

        ``wait_s`` is the wait by the bolt's ``Retry``; None: the tuple has failed once more, and
        waits for its back-off.
        """
        failures = self.failures(key, identity)
        attempts, waited_s = self.attempts(key, identity)
        action = next_action(failures, self._policy, self._limit)
        back_off_s = action.after_s if isinstance(action, RequeueAfter) else 0.0
        before = self._first.get(key)
        self._first[key] = FailedTuple(
            identity=identity,
            failures=failures + (wait_s is None),
            attempts=0 if wait_s is None else attempts + 1,
            waited_s=0.0 if wait_s is None else waited_s + wait_s,
            since_wall=self._wall(),
            # Another process may find the tuple behind its successors.
            awaited=before is not None and before.awaited and before.identity == identity,
            entry=entry,
            row=row,
            until=self._clock() + (back_off_s if wait_s is None else wait_s),
            alone=alone,
        )

    def comes_again(self, key: bytes, identity: bytes, *, doubtful: bool = False) -> None:
        """Note a failed tuple whose message is redelivered.

        If ``doubtful``, the message may have been acked already.
        """
        before = self._first.get(key)
        if before is not None and before.awaited and before.identity != identity:
            return
        one = FailedTuple(
            identity=identity, since_wall=self._wall(), awaited=True, doubtful=doubtful
        )
        one.until = self._clock() + self._patience(one)
        self._first[key] = one

    def done(self, key: bytes, identity: bytes) -> None:
        """Note an executed tuple that is neither retried nor redelivered."""
        one = self._first.get(key)
        if one is not None and (one.identity == identity or not one.awaited):
            del self._first[key]

    def due(self) -> bool:
        """Release tuples whose back-off has ended; return True if there are any."""
        now = self._clock()
        due = [one for one in self._first.values() if one.entry is not None and one.is_over(now)]
        for one in due:
            one.until = None
        return bool(due)

    @property
    def alone(self) -> FailedTuple | None:
        """A tuple that may begin and needs a step of its own; None if there is none."""
        failed = self._first.values()
        return next((one for one in failed if one.alone and one.until is None), None)

    def late(self) -> list[bytes]:
        """Return the keys whose awaited tuple has not come back in time."""
        now = self._clock()
        return [key for key, one in self._first.items() if one.entry is None and one.is_over(now)]

    def is_here(self, key: bytes) -> None:
        """Extend the wait for an awaited tuple that is back but not executed yet."""
        one = self._first[key]
        one.until = self._clock() + self._patience(one)

    def lapse(self) -> list[bytes]:
        """Give up the tuples that have not come back in time, and return their keys."""
        late = self.late()
        for key in late:
            del self._first[key]
        return late

    @property
    def next_at(self) -> float | None:
        """Time at which the next back-off ends or the next tuple is given up."""
        moments = (one.until for one in self._first.values())
        return min((at for at in moments if at is not None), default=None)

    def dump(self) -> bytes:
        """Serialize the failed tuples; the result is empty if there are none."""
        return b"".join(
            _RECORD.pack(key, one.identity, one.failures, one.since_wall, one.awaited, one.doubtful)
            for key, one in self._first.items()
        )

    def load(self, dumped: bytes) -> None:
        """Load the dump of an earlier process. Raises ValueError if it is invalid."""
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


def times_of(topology: Topology, component: str) -> tuple[float, float]:
    """Return the time to wait for an awaited tuple, and for a doubtful one.

    A queue redelivers a message after its back-off; other spouts may never emit it again. Ordered
    bolts upstream add to the time, as they may hold the tuple back while they retry another tuple.
    """
    config = topology.config
    timeout_s = config.message_timeout_secs
    spouts = [habits_of(spec.spout) for spec in topology.spouts.values()]
    if not all(spout.takes_back for spout in spouts):
        return _PATIENCE_PART * timeout_s, _PATIENCE_PART * timeout_s
    back_off_s = max((spout.back_off_s for spout in spouts), default=0.0)
    patience_s = max(_PATIENCE_S, _TIMEOUTS * timeout_s) + back_off_s
    times = 1 + _ordered_before(topology, component)
    return times * patience_s, times * _DOUBTFUL_S


def _ordered_before(topology: Topology, component: str) -> int:
    """Return the number of ordered bolts upstream of a bolt."""
    before: set[str] = set()
    ahead = [component]
    while ahead:
        for source in topology.bolts[ahead.pop()].subscriptions:
            if source.component in topology.bolts and source.component not in before:
                before.add(source.component)
                ahead.append(source.component)
    return sum(bool(ordered_by_of(topology.bolts[bolt])) for bolt in before - {component})
