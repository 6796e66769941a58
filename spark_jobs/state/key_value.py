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
# A value to put, a deletion, or an increment (amount, sum). Plain types, for there are many.
_Write = bytes | _Delete | tuple[int, int]


class KeyValueState:
    """A map from keys to values, one per component, shared by its tasks and kept from run to run.

    Keys are str, int, bytes, or tuples of these; values are None, bool, int, float, str, bytes, and
    lists and dicts (with string keys) of these. ``put`` stores a copy. A task sees its own writes
    at once; other tasks see them when the step is committed, which is before its tuples are acked.
    If ``execute`` raises, the writes of its tuple are dropped.

    Use it in ``execute`` and ``flush`` only, as ``self.state``. Every method raises BadStateError
    elsewhere, and for an invalid key or value, and AckerError if Redis does not answer; the step is
    then repeated.
    """

    def __init__(self, task_index: int = 0, parallelism: int = 1) -> None:
        """Without a turn, which ``open`` gives, every use is an error."""
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
        """Return the value, a new object each time; ``default`` if there is none."""
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
        """Add to a whole number, 0 if there is none yet; returns the sum.

        Tasks that increment one key in one step do not see each other's increments, but none is
        lost. Raises BadStateError for a value that is no int, and for a sum of more than 64 bits.
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
        """Yield the entries of this task, in no order. Reads all entries of the component, which is
        slow if there are many.

        Each entry belongs to one task: the one to which a fields grouping on the key sends it.
        Entries may be changed meanwhile; new ones may or may not be included.
        """
        seen = set()
        for field, stored in self._scan():
            # While its table is resized, Redis may return an entry twice.
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
        """Return the names of these keys in the store, each once, without invalid keys."""
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
        """Call ``execute``; if it raises, undo its writes."""
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
        """Undo the writes in the journal."""
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
        """Prepare the commit of all writes and close the turn; see ``StateTurn.writing``.

        Raises the error of an earlier read that failed, since the bolt worked without its value.
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
        """As this task sees it."""
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
            return int(raw)  # as decode_value, in a tenth of the time
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
        """The task's share of the stored entries."""
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
        """One wait for a server that does not answer is enough."""
        if self._error is not None:
            raise self._error

    def _is_mine(self, field: bytes) -> bool:
        if self._parallelism == 1:
            return True
        key = decode_key(field)
        values = key if isinstance(key, tuple) else (key,)
        return hash_values(values) % self._parallelism == self._task_index
