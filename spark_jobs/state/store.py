"""The contract of the state stores beneath ``KeyValueState``: maps of bytes, one per component.

``MemoryStateStore`` and ``RedisStateStore`` both fulfil it and pass one suite.

A *turn* is one attempt of one bolt task at one step. A task may have several attempts, some dead,
some unaware that they were replaced. A store keeps a turn's undo records until the task's next step
begins. It hands out effects, which leave together with those of other stores (``acker.effects``),
and promises:

* **Once.** However many attempts there are, one of them wrote all entries. A turn reads the
  entries as they were before its step, without the writes of earlier attempts.
* **A commit that returned is final**, because from then on its acks may leave, and acked work must
  stay counted. A later attempt that did the same work writes nothing; one that did other work
  learns that, and its messages must be failed. Writes of an attempt that died in its commit are
  undone when the next turn of its task begins.
* **The latest turn may write.** A turn of an older run, an older step or an earlier attempt is
  refused. Runs are ordered by their number, for all tasks of the component; steps by theirs.
* **A tuple is applied once,** by one turn of one task, if its key is among the marks of the commit.
  The marks are written and undone with the entries. Marks age by a clock of their own, which runs
  while marks are made or ``age`` is called, at most ten seconds per call: neither a jump of the
  system clock nor a stopped topology makes marks expire. ``age`` deletes expired marks.
* Two tasks of one component may write one key: all increments count; of several puts one stays.
* Errors of the server are AckerErrors, as everywhere: RedisUnavailableError (the step may be
  repeated), RedisRefusedError (a person must act). Calls that the client repeats by itself
  take effect once.
* A server that loses its memory loses the entries: their safety depends on the server's
  persistence. Turns do not notice it; ``has_lost`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiercel.acker.effects import Effect

# Seconds from one ``age`` to the next. The clock of the marks counts at most ten per call.
AGED_EVERY_S = 5.0
# Entries per call when all are read.
ENTRIES_AT_ONCE = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Writes:
    """Writes of a turn; each field is in one of puts, deletes and increments."""

    puts: Mapping[bytes, bytes] = field(default_factory=dict)
    deletes: Collection[bytes] = ()
    # Amounts within plus or minus 2**63 - 1, on entries that are decimal numbers of 64 bits, or
    # missing, which counts as 0.
    increments: Mapping[bytes, int] = field(default_factory=dict)
    # Keys of 16 bytes of the tuples that the turn has applied, to their records. No other turn may
    # have applied them, see ``StateTurn.recall``.
    marks: Mapping[bytes, bytes] = field(default_factory=dict)
    # Indexes of the other tasks to which some of the entries belong, see ``StateTurn.follows``;
    # None: any task.
    owners: Collection[int] | None = None

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.puts) + len(self.deletes) + len(self.increments)

    def __bool__(self) -> bool:
        return bool(len(self) or self.marks)


class StateTurn(Protocol):
    """One attempt of one bolt task at one step. For one thread."""

    @property
    def committed_digest(self) -> str | None:
        """The digest with which an earlier attempt at this step committed; None if none did.

        If the present work has another digest, it must not leave: its messages must be failed.
        """

    @property
    def found(self) -> Mapping[bytes, bytes | None]:
        """The values before this step of the fields passed to ``begin``; None for missing ones."""

    def follows(self, last: StateTurn) -> bool:
        """Return True if since the beginning of ``last``, the task's turn before, certainly only
        ``last`` has changed entries that belong to this task.

        Then no turn of the task began between the two, no other task wrote such an entry
        (``Writes.owners`` of each commit says whose entries it has), no incomplete commit was
        undone, and no server lost its memory.
        """
        ...

    def read(self, fields: Sequence[bytes]) -> list[bytes | None]:
        """Return the values before this step, in the order of ``fields``; None for missing ones.

        One call per shard; more if they are many or large.
        """

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries of the component before this step, in no order, some perhaps twice.

        Concurrent commits of other tasks may or may not be seen.
        """

    def recall(self, keys: Sequence[bytes], tasks: int) -> dict[bytes, bytes]:
        """Return the records of tuples with these keys that were applied before this step; the
        component has this many tasks.

        One call per shard. All records are final: raises TurnAgainError if one of the marks belongs
        to another task's commit that is not complete after a few seconds.
        """

    def writing(self, writes: Writes, digest: str) -> Sequence[Effect[bool]]:
        """Prepare a commit; ``digest`` names the work that was done. At most one per turn.

        Make the calls with ``perform_in_turn``, in this order: the last one makes the commit final.
        There are no calls if there are no writes, or if an earlier attempt has committed: with the
        same digest the writes are done, otherwise see ``committed_digest``. A call replies True or
        raises: StaleTurnError (nothing of this turn stays), BadStateError if an increment would
        exceed 64 bits or another task has meanwhile put something other than a number there, and
        TurnAgainError if another task has meanwhile applied one of the marked tuples (the next turn
        undoes this turn's writes).
        """


class StateStore(Protocol):
    """The states of all components of one topology, as one run uses them."""

    def begin_run(self, component: str, tasks: int | None = None) -> None:
        """End the turns of earlier runs and undo their incomplete commits.

        If the run has this number of ``tasks``, then forget the turns of others, which earlier runs
        had: their late calls are refused by the number of the run alone.

        Call it before any turn of this run: if the number of tasks has changed, a task with an
        incomplete commit may be gone, and the new owner of its keys must not read writes that are
        undone later. May be repeated. Raises the errors of ``begin``.
        """

    def begin(
        self, component: str, task: int, step: int, fields: Sequence[bytes] = ()
    ) -> Effect[StateTurn]:
        """Begin a turn of the component's task with this index, which ends all its earlier turns.

        Also reads ``fields``: see ``StateTurn.found``. Steps count from 1; ``begin_run`` uses 0.
        A repeat begins another turn, which ends the one before. The call raises StaleTurnError if a
        later run or step has begun, StateLayoutError if entries were written with another number of
        shards.
        """

    def age(self, component: str, retention_s: int) -> None:
        """Advance the clock of the marks, and delete some marks that are older than this.

        The driver calls it every ``AGED_EVERY_S`` while the topology is active. Then a mark is
        deleted at most two minutes plus a tenth of its retention (at most an hour) after it
        expires.
        """

    def marks(self, components: Sequence[str]) -> Mapping[str, int]:
        """Count the marks of each component that has any."""

    def has_lost(self, component: str) -> bool:
        """Return True if a server has lost its memory since the last call, after a turn had begun
        by then. The first call of a store only takes note, and a server that comes back with older
        data has lost nothing.
        """

    def entries(
        self, component: str, at_once: int = ENTRIES_AT_ONCE
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the current entries, outside any turn; otherwise like ``StateTurn.scan``.

        Each call reads about ``at_once`` entries, and only these are in memory.
        """

    def values(self, component: str, fields: Sequence[bytes]) -> list[bytes | None]:
        """Return the current values, outside any turn, in the order of ``fields``; None for missing
        ones. A commit in progress may be seen in part.
        """

    def count(self, component: str) -> int:
        """Count the current entries, with one call per shard."""

    def close(self) -> None:
        """Release the connections. Idempotent."""


def value_before(current: bytes | None, record: bytes | None) -> bytes | None:
    """Return the entry before the commit that left the undo record; None if there was none.

    The Lua scripts write one record for each changed entry:

    ``=old``   the old value                   ``-``      there was no entry
    ``+n``     incremented by n                ``*n``     there was no entry; incremented by n
    ``~…``     the marks of one call; its field is not an entry's
    ``#…``     small increments of one call, packed; an attempt at a committed step unpacks them
               into ``+n`` and ``*n`` as it begins, before anything reads the log

    An increment is undone by its opposite, not by the old value, because another task may have
    incremented the entry too.
    """
    if record is None:
        return current
    kind = record[:1]
    rest = record[1:]
    if kind == b"=":
        return rest
    if kind == b"-":
        return None
    if kind == b"~":
        return current
    try:
        number = int(b"0" if current is None else current) - int(rest)
    except ValueError:
        # Another task has put another value there, so there is nothing to undo.
        return current
    return None if kind == b"*" and number == 0 else b"%d" % number
