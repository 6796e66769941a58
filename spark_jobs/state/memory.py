"""The state in memory, for the test kit and as the oracle for the tests of the one in Redis."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from tiercel.acker.effects import Effect, LocalEffect
from tiercel.spark_jobs.errors import BadStateError, StaleTurnError, TurnAgainError
from tiercel.spark_jobs.state.store import ENTRIES_AT_ONCE, StateTurn, Writes, value_before

_LIMIT = 1 << 63
# Most seconds that marks age from one call to the next.
_LONGEST_S = 10.0


@dataclass(kw_only=True)
class _Task:
    """State of one bolt task."""

    # Run, step and attempt of the turn that may write.
    turn: tuple[int, int, int] = (0, -1, 0)
    # Digest of this step's commit.
    committed_digest: str | None = None
    # Undo records of this step's commit.
    undo: dict[bytes, bytes] = field(default_factory=dict)
    # Keys of the marks of this step's commit.
    marked: frozenset[bytes] = frozenset()


@dataclass(kw_only=True)
class _MemoryComponent:
    entries: dict[bytes, bytes] = field(default_factory=dict)
    # Key to the time of the mark, by ``ran``, and its record; the oldest first.
    marks: dict[bytes, tuple[float, bytes]] = field(default_factory=dict)
    # Seconds that the clock of the marks has run, and the system clock then.
    ran: float = 0.0
    ran_at: float | None = None
    run_number: int = 0
    # Per task, None for all: commits in which other tasks wrote its entries.
    foreign: Counter[int | None] = field(default_factory=Counter)
    tasks: dict[int, _Task] = field(default_factory=dict)

    def run_on(self, now: float) -> None:
        before = now if self.ran_at is None else self.ran_at
        self.ran_at = now
        self.ran += max(0.0, min(_LONGEST_S, now - before))


class MemoryStateStore:
    """``StateStore`` in this process."""

    def __init__(
        self,
        run_number: int = 1,
        beneath: MemoryStateStore | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``beneath`` is the store of another run of the same topology, which shares the entries.
        ``clock`` returns seconds; it may jump.
        """
        self._run_number = run_number
        self._clock = clock
        self._components: dict[str, _MemoryComponent] = beneath._components if beneath else {}  # noqa: SLF001 - its like

    def begin_run(self, component: str, tasks: int | None = None) -> None:
        # Commits are atomic here, so nothing is undone; turns of earlier runs are refused.
        known = self._components.setdefault(component, _MemoryComponent()).tasks
        for task in list(known):
            self.begin(component, task, 0).perform()
            if tasks is not None and task >= tasks:
                del known[task]

    def begin(
        self, component: str, task: int, step: int, fields: Sequence[bytes] = ()
    ) -> Effect[MemoryStateTurn]:
        return LocalEffect(lambda: self._begin(component, task, step, fields))

    def _begin(
        self, component: str, task: int, step: int, fields: Sequence[bytes]
    ) -> MemoryStateTurn:
        known = self._components.setdefault(component, _MemoryComponent())
        mine = known.tasks.setdefault(task, _Task())
        run_number, newest, attempt = mine.turn
        if self._run_number < known.run_number or (self._run_number, step) < (run_number, newest):
            raise StaleTurnError(
                f"a later run or step than {step} has begun with the state of {component!r}"
            )
        if (run_number, newest) != (self._run_number, step):
            mine.committed_digest = None
            mine.undo = {}
            mine.marked = frozenset()
        known.run_number = self._run_number
        seen = mine.turn, known.foreign[None], known.foreign[task]
        mine.turn = self._run_number, step, attempt + 1
        turn = MemoryStateTurn(known, mine, self._clock, seen)
        turn.found.update(zip(fields, turn.read(fields), strict=True))
        return turn

    def age(self, component: str, retention_s: int) -> None:
        known = self._components.setdefault(component, _MemoryComponent())
        known.run_on(self._clock())
        oldest = known.ran - retention_s
        marks = known.marks
        for key in list(takewhile(lambda key: marks[key][0] < oldest, marks)):
            del marks[key]

    def marks(self, components: Sequence[str]) -> dict[str, int]:
        known = self._components
        return {one: len(known[one].marks) for one in components if one in known}

    def has_lost(self, component: str) -> bool:  # noqa: ARG002 - memory loses nothing
        return False

    def entries(
        self,
        component: str,
        at_once: int = ENTRIES_AT_ONCE,  # noqa: ARG002 - all are in memory
    ) -> Iterator[tuple[bytes, bytes]]:
        known = self._components.get(component)
        yield from list(known.entries.items()) if known else []

    def values(self, component: str, fields: Sequence[bytes]) -> list[bytes | None]:
        known = self._components.get(component)
        return [known.entries.get(one) if known else None for one in fields]

    def count(self, component: str) -> int:
        known = self._components.get(component)
        return len(known.entries) if known else 0

    def close(self) -> None:
        pass


class MemoryStateTurn:
    """``StateTurn`` in this process; commits are atomic."""

    def __init__(
        self,
        component: _MemoryComponent,
        task: _Task,
        clock: Callable[[], float],
        seen: tuple[tuple[int, int, int], int, int],
    ) -> None:
        """``seen`` is the turn before, and the foreign writes to all tasks and to this one."""
        self._component = component
        self._clock = clock
        self._task = task
        self.turn = task.turn
        self.seen = seen
        self.committed_digest = task.committed_digest
        # A copy, because this turn must not read through a later attempt's commit.
        self._undo = dict(task.undo)
        self._marked = task.marked
        self.found: dict[bytes, bytes | None] = {}

    def follows(self, last: StateTurn) -> bool:
        return isinstance(last, MemoryStateTurn) and self.seen == (last.turn, *last.seen[1:])

    def read(self, fields: Sequence[bytes]) -> list[bytes | None]:
        return [
            value_before(self._component.entries.get(one), self._undo.get(one)) for one in fields
        ]

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        for one in list(dict.fromkeys((*self._component.entries, *self._undo))):
            [value] = self.read([one])
            if value is not None:
                yield one, value

    def recall(self, keys: Sequence[bytes], tasks: int) -> dict[bytes, bytes]:  # noqa: ARG002 - every commit is complete
        marks = self._component.marks
        return {key: marks[key][1] for key in keys if key in marks and key not in self._marked}

    def writing(self, writes: Writes, digest: str) -> list[Effect[bool]]:
        if self.committed_digest is not None or not writes:
            return []
        return [LocalEffect(lambda: self._write(writes, digest))]

    def _write(self, writes: Writes, digest: str) -> bool:
        if self._task.turn != self.turn or self._component.run_number != self.turn[0]:
            raise StaleTurnError(
                "a later attempt or run has taken over the bolt task: nothing was written"
            )
        if self._task.committed_digest is not None:
            return True  # a repeat of this call
        if not self._component.marks.keys().isdisjoint(writes.marks):
            raise TurnAgainError("another task has applied one of the tuples meanwhile")
        entries = self._component.entries
        undo = self._task.undo
        sums = {one: _sum(entries.get(one), by) for one, by in writes.increments.items()}
        for one, by in writes.increments.items():
            undo[one] = b"%c%d" % (b"+" if one in entries else b"*", by)
        for one in (*writes.puts, *writes.deletes):
            undo[one] = b"=" + entries[one] if one in entries else b"-"
        entries |= sums | dict(writes.puts)
        for one in writes.deletes:
            entries.pop(one, None)
        self._component.foreign.update([None] if writes.owners is None else writes.owners)
        self._mark(writes)
        self._task.committed_digest = digest
        return True

    def _mark(self, writes: Writes) -> None:
        if not writes.marks:
            return
        component = self._component
        component.run_on(self._clock())
        component.marks |= {key: (component.ran, record) for key, record in writes.marks.items()}
        self._task.marked = frozenset(writes.marks)


def _sum(current: bytes | None, by: int) -> bytes:
    try:
        total = int(b"0" if current is None else current) + by
    except ValueError:
        total = _LIMIT
    if not -_LIMIT <= total < _LIMIT:
        raise BadStateError("an increment met an entry that is no number of 64 bits any more")
    return b"%d" % total
