"""The contract of state stores, below the state that bolts see: a map of bytes per component.

``MemoryStateStore`` and ``RedisStateStore`` both fulfil it and pass one suite.

A *turn* is one attempt of one bolt task at one step. A task may have several attempts: some may be
dead, others may not know that they were replaced. A store keeps undo records of a turn until the
task's next step begins. It returns effects, which are performed together with effects of other
stores (``acker.effects``), and promises:

* **Once.** Of all attempts at a step, one writes its entries. A turn reads the entries as they were
  before its step, without the writes of earlier attempts.
* **A commit that returned is final**, because its acks may leave from then on. A later attempt with
  the same work writes nothing; an attempt with other work is told so, and its messages must be
  failed. Writes of an attempt that died during its commit are undone when the next turn begins.
* **Only the latest turn may write.** Turns of an older run, step or attempt are refused. Runs are
  ordered by number, for all tasks of a component; so are steps.
* **A tuple is applied once,** by one turn of one task, if its key is among the marks of the commit.
  Marks are written and undone together with the entries. They do not age by wall-clock time
  but by a clock that advances when marks are made or ``age`` is called, by at most ten seconds per
  call: so no marks are lost when the system clock jumps or while the topology is stopped. ``age``
  deletes marks that are older than their retention.
* Two tasks of one component may write one key: all increments count; of several puts one stays.
* Errors of the server are AckerErrors, as everywhere: RedisUnavailableError (the step may be
  repeated), RedisRefusedError (a person must act). Calls that the client repeats by itself
  take effect once.
* Entries are lost if the server loses its data, which is not reported: use Redis persistence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiercel.acker.effects import Effect

# Period of ``age``; the clock of the marks advances by ten seconds per call at most.
AGED_EVERY_S = 5.0
# Entries per call when all are read.
ENTRIES_AT_ONCE = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Writes:
    """Writes of a turn; each field is in one of ``puts``, ``deletes`` and ``increments``."""

    puts: Mapping[bytes, bytes] = field(default_factory=dict)
    deletes: Collection[bytes] = ()
    # Amounts from -(2**63 - 1) to 2**63 - 1, for entries that are decimal 64-bit numbers; a missing
    # entry counts as 0.
    increments: Mapping[bytes, int] = field(default_factory=dict)
    # 16-byte keys of the tuples that the turn has applied, to their records. No other turn has
    # applied them, see ``StateTurn.recall``.
    marks: Mapping[bytes, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.puts) + len(self.deletes) + len(self.increments)

    def __bool__(self) -> bool:
        return bool(len(self) or self.marks)


class StateTurn(Protocol):
    """One attempt of one bolt task at one step. One thread only."""

    @property
    def committed_digest(self) -> str | None:
        """The digest with which an earlier attempt at this step committed; None if none did.

        If the digest of this attempt's work differs, its messages must be failed.
        """
        ...

    @property
    def found(self) -> Mapping[bytes, bytes | None]:
        """The values, before this step, of the fields that ``begin`` named; None if missing."""
        ...

    def read(self, fields: Sequence[bytes]) -> list[bytes | None]:
        """The values before this step, in the order of ``fields``; None where there is none.

        In bulk: one call per shard.
        """
        ...

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries of the component before this step, in no order, some perhaps twice.

        What other tasks commit meanwhile may or may not be seen.
        """
        ...

    def recall(self, keys: Sequence[bytes], tasks: int) -> dict[bytes, bytes]:
        """The records of tuples with these keys that were applied before this step; the component
        has this many tasks.

        In bulk: one call per shard. Only final records: raises TurnAgainError if another task has
        made one of the marks in a commit that is not complete after some seconds.
        """
        ...

    def writing(self, writes: Writes, digest: str) -> Sequence[Effect[bool]]:
        """Prepare a commit; ``digest`` names the work that was done. At most one per turn.

        Make the calls by ``perform_in_turn``, in this order: the commit is final with the last one,
        and each may follow only the one before. There are none, and nothing is written, without
        writes, and where an earlier attempt has committed: if its digest is the same, the writes
        were done; if it is not, see ``committed_digest``. A call replies True or
        raises: StaleTurnError (nothing of this turn stays), BadStateError for an increment of an
        entry that another task has meanwhile made something else than a number, or that would
        leave 64 bits, and TurnAgainError if another task has meanwhile applied one of the marked
        tuples (the next turn takes back what this one had written).
        """
        ...


class StateStore(Protocol):
    """The states of all components of one topology, as one run uses them."""

    def begin_run(self, component: str) -> None:
        """End the turns of earlier runs: what one of them left half done is taken back.

        Call it before any turn of this run. With another number of tasks a task that left something
        may be gone, and its keys are another task's, which must not read a record that is taken
        back later. May be repeated. Raises what ``begin`` raises.
        """
        ...

    def begin(
        self, component: str, task: int, step: int, fields: Sequence[bytes] = ()
    ) -> Effect[StateTurn]:
        """Begin a turn of the component's task with this index, and with that end all
        its earlier ones.

        Reads ``fields`` with it: see ``StateTurn.found``. Steps count from 1; 0 is ``begin_run``'s,
        where that is called. A repeat begins another turn, which ends the one before. The call
        raises StaleTurnError if a later run or step has begun, StateLayoutError if there are
        entries that were written with another number of shards.
        """
        ...

    def age(self, component: str, retention_s: int) -> None:
        """Advance the clock of the marks, and delete some marks that are older than this.

        The driver calls this every ``AGED_EVERY_S`` while the topology is active. A mark is then
        deleted within two minutes plus a tenth of its retention (at most an hour) after it expires.
        """
        ...

    def marks(self, components: Sequence[str]) -> Mapping[str, int]:
        """Count the marks of each of the components that has any."""
        ...

    def entries(
        self, component: str, at_once: int = ENTRIES_AT_ONCE
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the current entries, outside any turn; otherwise as ``StateTurn.scan``.

        About ``at_once`` of them are asked for per call, and in memory at a time.
        """
        ...

    def values(self, component: str, fields: Sequence[bytes]) -> list[bytes | None]:
        """Return the current values, outside any turn, in the order of ``fields``; None if missing.

        A commit that is under way may be seen in part.
        """
        ...

    def count(self, component: str) -> int:
        """Count the current entries; one call per shard, however many entries there are."""
        ...

    def close(self) -> None:
        """Release the connections. Idempotent."""
        ...


def value_before(current: bytes | None, record: bytes | None) -> bytes | None:
    """Return the value of an entry before the commit that wrote the undo ``record``, or None.

    The Lua scripts write one undo record for each entry that changed:

    ``=old``   the value that was there        ``-``      nothing was there
    ``+n``     incremented by n                ``*n``     nothing was there, and it was incremented
    ``~…``     the marks of one call; not an entry

    An increment is undone by subtraction and not by the old value: another task may have
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
        # Another task has replaced the number: there is nothing to undo.
        return current
    return None if kind == b"*" and number == 0 else b"%d" % number
