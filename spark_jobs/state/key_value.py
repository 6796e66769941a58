"""The state of a stateful bolt: a map whose writes leave with the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from functools import wraps
from typing import Any

from tiercel.acker.effects import Effect
from tiercel.acker.errors import AckerError
from tiercel.acker.ids import hash_values
from tiercel.spark_jobs.errors import BadStateError
from tiercel.spark_jobs.state.encoding import (
    Key,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tiercel.spark_jobs.state.store import StateTurn, Writes

_LIMIT = 1 << 63


class _Delete(Enum):
    DELETE = auto()


_DELETE = _Delete.DELETE
# A value that is put, a deletion, or an increment: the amount and the sum. Plain types, because
# there are many writes.
_Write = bytes | _Delete | tuple[int, int]


class KeyValueState:
    """A map from keys to values, one per component, shared by its tasks and kept from run to run.

    Keys are str, int, bytes, or tuples of these; values are None, bool, int, float, str, bytes, and
    lists and dicts (with string keys) of these. A value is encoded when it is put: changing the
    object afterwards changes nothing. A task sees its own writes at once; other tasks see them when
    the step is committed, before its tuples are acked. If ``execute`` raises, its tuple's writes
    are dropped.

    Use it in ``execute`` and ``flush``, taken from ``self`` each time. Every method raises
    BadStateError outside these calls, and for an invalid key or value. If Redis does not answer it
    raises AckerError; the step is then repeated.
    """

    def __init__(self, task_index: int = 0, parallelism: int = 1) -> None:
        """Every use raises until ``open`` gives it a turn."""
        self._turn: StateTurn | None = None
        self._task_index = task_index
        self._parallelism = parallelism
        self._fields: dict[str, bytes] = {}
        self._base: dict[bytes, bytes | None] = {}
        self._writes: dict[bytes, _Write] = {}
        # Fields written, each with its write before, for ``_take_back``.
        self._journal: list[tuple[bytes, _Write | None]] = []
        self._error: AckerError | None = None
        # Keys of the tuples that were applied in this turn, to their records; see ``Writes``.
        self.marks: dict[bytes, bytes] = {}

    # -- for bolts ---------------------------------------------------------------------------------

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value, a new object each time; ``default`` if the key has none."""
        raw = self._current(self._field(key))
        return default if raw is None else decode_value(raw)

    def put(self, key: Key, value: Any) -> None:
        """Set the value."""
        field = self._field(key)
        self._write(field, self._writes.get(field), encode_value(value))

    def delete(self, key: Key) -> None:
        """Remove the entry if there is one."""
        field = self._field(key)
        self._write(field, self._writes.get(field), _DELETE)

    def increment(self, key: Key, by: int = 1) -> int:
        """Add to an int, 0 if there is none yet; returns the sum.

        Tasks that increment the same key at once do not see each other's increments, but none is
        lost. Raises BadStateError for a value that is not an int, and for a sum beyond 64 bits.
        """
        field = self._field(key)
        if type(by) is not int:
            raise BadStateError(f"a state is incremented by an int, not by {by!r:.60}")
        write = self._writes.get(field)
        if type(write) is tuple:
            amount, total = write
            amount = amount + by
            total = total + by
        else:
            amount = by
            total = self._number(field, key) + by
        if not (-_LIMIT <= total < _LIMIT and -_LIMIT < amount < _LIMIT):
            raise BadStateError(
                f"{key!r:.60} cannot be incremented by {by}: the number would need more than "
                "64 bits"
            )
        self._write(
            field,
            write,
            (amount, total) if write is None or type(write) is tuple else b"%d" % total,
        )
        return total

    def iterate(self) -> Iterator[tuple[Key, Any]]:
        """Yield the entries of this task, in no order. Reads all entries of the component, which
        takes a while if there are many.

        Each entry comes at one task only: the one to which a fields grouping on the key sends it.
        Entries may be put, deleted and incremented meanwhile; an entry added during the iteration
        may or may not come.
        """
        seen = set()
        for field, stored in self._scan():
            # Redis may return an entry twice while it resizes its table.
            if field not in seen:
                seen.add(field)
                raw = self._written(self._writes[field]) if field in self._writes else stored
                if raw is not None:
                    yield decode_key(field), decode_value(raw)
        for field in [
            field for field in self._writes if field not in seen and self._is_mine(field)
        ]:
            raw = self._current(field)
            if raw is not None:
                yield decode_key(field), decode_value(raw)

    # -- for the runner ----------------------------------------------------------------------------

    def fields(self, keys: Iterable[Key]) -> list[bytes]:
        """Return the encoded keys, each once, without invalid ones."""
        fields: dict[bytes, None] = {}
        for key in keys:
            try:
                fields[self._field(key)] = None
            except BadStateError:
                continue  # the bolt gets the error when it uses the key
        return list(fields)

    def open(self, turn: StateTurn) -> None:
        """Work with this turn from now on."""
        self._turn = turn
        self._base.update(turn.found)

    def guarded(self, execute: Callable[..., None]) -> Callable[..., None]:
        """Wrap ``execute``, so that its writes are undone if it raises."""
        journal = self._journal

        @wraps(execute)
        def guarded(*args: object) -> None:
            journal.clear()
            try:
                execute(*args)
            except BaseException:
                self._take_back()
                raise

        return guarded

    def _take_back(self) -> None:
        """Undo all writes in the journal."""
        for field, earlier in reversed(self._journal):
            if earlier is None:
                self._writes.pop(field, None)
            else:
                self._writes[field] = earlier

    def forget(self) -> None:
        """Drop all writes."""
        self._writes.clear()
        self.marks.clear()

    def recall(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the records of the tuples with these keys that were applied in earlier steps.

        Raises TurnAgainError, AckerError.
        """
        return self._opened().recall(keys, self._parallelism)

    @property
    def committed_digest(self) -> str | None:
        """See ``StateTurn``."""
        return self._opened().committed_digest

    def writing(self, digest: str) -> Sequence[Effect[bool]]:
        """Prepare to write everything, see ``StateTurn.writing``, and end the use of the turn.

        If a read failed, the bolt's work is void: raises the error of that read.
        """
        if self._error is not None:
            raise self._error
        turn = self._opened()
        self._turn = None
        return turn.writing(self._bulk(), digest)

    def _bulk(self) -> Writes:
        writes = self._writes.items()
        return Writes(
            puts={field: write for field, write in writes if isinstance(write, bytes)},
            deletes=[field for field, write in writes if write is _DELETE],
            increments={field: write[0] for field, write in writes if isinstance(write, tuple)},
            marks=self.marks,
        )

    def _opened(self) -> StateTurn:
        if self._turn is None:
            raise BadStateError(
                "a state can be used in execute and flush only; take it from self.state each time"
            )
        return self._turn

    def _field(self, key: Key) -> bytes:
        if type(key) is not str:
            return encode_key(key)
        field = self._fields.get(key)
        if field is None:
            field = self._fields[key] = encode_key(key)
        return field

    def _write(self, field: bytes, earlier: _Write | None, write: _Write) -> None:
        if self._turn is None:
            self._opened()
        self._journal.append((field, earlier))
        self._writes[field] = write

    def _current(self, field: bytes) -> bytes | None:
        """Return the value as this task sees it."""
        write = self._writes.get(field)
        return self._stored(field) if write is None else self._written(write)

    @staticmethod
    def _written(write: _Write) -> bytes | None:
        if isinstance(write, tuple):
            return b"%d" % write[1]
        return write if isinstance(write, bytes) else None

    def _number(self, field: bytes, key: Key) -> int:
        raw = self._current(field)
        if raw is not None and raw.isdigit():
            return int(raw)  # like decode_value, in a tenth of the time
        value = 0 if raw is None else decode_value(raw)
        if type(value) is not int:
            raise BadStateError(
                f"{key!r:.60} cannot be incremented: its value is {value!r:.60}, not an int"
            )
        return value

    def _stored(self, field: bytes) -> bytes | None:
        turn = self._opened()
        if field not in self._base:
            self._check_reachable()
            try:
                [self._base[field]] = turn.read([field])
            except AckerError as error:
                self._error = error
                raise
        return self._base[field]

    def _scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the task's share of the stored entries."""
        turn = self._opened()
        self._check_reachable()
        try:
            for field, raw in turn.scan():
                if self._is_mine(field):
                    yield field, raw
        except AckerError as error:
            self._error = error
            raise

    def _check_reachable(self) -> None:
        """Raise the last error again: one wait for an unreachable server is enough."""
        if self._error is not None:
            raise self._error

    def _is_mine(self, field: bytes) -> bool:
        if self._parallelism == 1:
            return True
        key = decode_key(field)
        values = key if isinstance(key, tuple) else (key,)
        return hash_values(values) % self._parallelism == self._task_index
