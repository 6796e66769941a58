"""The state of a stateful bolt: a map whose writes leave with the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import wraps
from typing import Any

from tiercel.acker.effects import Effect
from tiercel.acker.errors import AckerError
from tiercel.acker.ids import hash_values
from tiercel.spark_jobs.errors import BadStateError, check_result
from tiercel.spark_jobs.state.encoding import (
    Key,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tiercel.spark_jobs.state.store import StateTurn, Writes

_LIMIT = 1 << 63
# Bytes that the cache of a task may take, about; and what an entry and a key take beyond their
# bytes: objects, and places in dictionaries.
CACHE_BYTES = 32 * 1024 * 1024
_ENTRY_BYTES = 200
_KEY_BYTES = 150
# Steps without a cache, at most, where another task has changed the entries again and again.
_LONGEST_PAUSE = 63


class _Delete(Enum):
    DELETE = auto()


_DELETE = _Delete.DELETE
# A value that is put, a deletion, or an increment: the amount and the sum. Plain types, because
# there are many writes.
_Write = bytes | _Delete | tuple[int, int]


class StateCache:
    """The entries that belong to one bolt task, as far as its attempt has read or written them.

    An entry belongs to the task to which a fields grouping on its key sends tuples. The values are
    good in a turn that follows the last committed one (``StateTurn.follows``); otherwise they are
    dropped. If this happens often, values are kept in fewer and fewer steps, because each time
    costs a round trip. Everything is dropped when it exceeds ``CACHE_BYTES``.
    """

    def __init__(self, task_index: int = 0, parallelism: int = 1) -> None:
        self.task_index = task_index
        self.parallelism = parallelism
        # Encoded keys, and values as ``KeyValueState`` has them. During a step also values that
        # belong to other tasks.
        self.fields: dict[str, bytes] = {}
        self.values: dict[bytes, bytes | int | None] = {}
        # Fields that belong to other tasks.
        self._others: dict[bytes, int] = {}
        # Bytes that the values take, and the keys and other tasks' fields, about.
        self._size = self._key_size = 0
        # The turn after which the values are those in the store.
        self._last: StateTurn | None = None
        self._pause = 0
        self._pauses_left = 0

    def begin(self, turn: StateTurn) -> bool:
        """Begin a step; return False if values were dropped, which must be read again."""
        last = self._last
        self._last = None
        if last is not None and turn.follows(last):
            self._pause = 0
            return True
        if last is not None:
            self._pause = self._pauses_left = min(2 * self._pause + 1, _LONGEST_PAUSE)
        known = bool(self.values)
        self._drop()
        return not known

    def end(self, read: Iterable[bytes]) -> None:
        """Drop the values that belong to other tasks; ``read`` are the fields read in this step."""
        values = self.values
        for field in read:
            if self.is_mine(field):
                raw = values[field]
                self._size += _ENTRY_BYTES + len(field)
                if type(raw) is bytes:
                    self._size += len(raw)
            else:
                del values[field]

    def owners(self, fields: Iterable[bytes]) -> set[int]:
        """Return the other tasks to which some of these entries belong; call it after ``end``."""
        if self.parallelism == 1:
            return set()
        left = set(fields).difference(self.values)
        return {self._others[field] for field in left if not self.is_mine(field)}

    def written(self, turn: StateTurn, writes: Mapping[bytes, _Write]) -> None:
        """Take over the writes of a turn that is committed."""
        if turn.committed_digest is not None or self._pauses_left:
            # If an earlier attempt has committed, this one has read the values before.
            self._pauses_left = max(0, self._pauses_left - 1)
            self._drop()
            return
        values = self.values
        for field, write in writes.items():
            if type(write) is tuple and type(values.get(field)) is int:
                values[field] = write[1]
            elif field in values or self.is_mine(field):
                self._keep(field, write)
        self._last = turn
        if self._size + self._key_size > CACHE_BYTES:
            self._drop()
            self.fields.clear()
            self._others.clear()
            self._key_size = 0
            self._last = None

    def encode(self, key: str) -> bytes:
        """Encode a key that is not in ``fields``."""
        field = self.fields[key] = encode_key(key)
        self._key_size += _KEY_BYTES + 2 * len(field)
        return field

    def is_mine(self, field: bytes) -> bool:
        """Return True if the entry belongs to this task."""
        if self.parallelism == 1:
            return True
        if field in self._others:
            return False
        owner = owner_of(field, self.parallelism)
        if owner == self.task_index:
            return True
        self._others[field] = owner
        self._key_size += _KEY_BYTES + len(field)
        return False

    def _keep(self, field: bytes, write: _Write) -> None:
        old = self.values.get(field)
        if type(old) is bytes:
            self._size -= len(old)
        elif field not in self.values:
            self._size += _ENTRY_BYTES + len(field)
        if type(write) is bytes:
            self._size += len(write)
        self.values[field] = _written(write)

    def _drop(self) -> None:
        self.values.clear()
        self._size = 0


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

    def __init__(self, cache: StateCache | None = None) -> None:
        """Every use raises until ``open`` gives it a turn.

        ``cache`` has the values that the task knows from earlier steps.
        """
        self._turn: StateTurn | None = None
        self._cache = cache = cache or StateCache()
        self._fields = cache.fields
        self._values = cache.values
        # Fields read in this step.
        self._read: list[bytes] = []
        self._writes: dict[bytes, _Write] = {}
        # Fields written, each with its write before, for ``_take_back``.
        self._journal: list[tuple[bytes, _Write | None]] = []
        self._error: AckerError | None = None
        self._written_in: StateTurn | None = None
        # Keys of the tuples that were applied in this turn, to their records; see ``Writes``.
        self.marks: dict[bytes, bytes] = {}

    # -- for bolts ---------------------------------------------------------------------------------

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value, a new object each time; ``default`` if the key has none."""
        raw = self._current(self._field(key))
        if type(raw) is bytes:
            return decode_value(raw)
        return default if raw is None else raw

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
        # Without a call in the usual case: there are many increments.
        field = self._fields.get(key) if type(key) is str else None
        if field is None:
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
            known = self._values.get(field) if write is None else None
            total = by + (known if type(known) is int else self._number(field, key))
        if not (-_LIMIT <= total < _LIMIT and -_LIMIT < amount < _LIMIT):
            raise BadStateError(
                f"{key!r:.60} cannot be incremented by {by}: the number would need more than "
                "64 bits"
            )
        if self._turn is None:
            self._opened()
        self._journal.append((field, write))
        self._writes[field] = (
            (amount, total) if write is None or type(write) is tuple else b"%d" % total
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
                raw = _written(self._writes[field]) if field in self._writes else stored
                if raw is not None:
                    yield decode_key(field), decode_value(raw) if type(raw) is bytes else raw
        for field in [
            field for field in self._writes if field not in seen and self._is_mine(field)
        ]:
            raw = self._current(field)
            if raw is not None:
                yield decode_key(field), decode_value(raw) if type(raw) is bytes else raw

    # -- for the runner ----------------------------------------------------------------------------

    def unread(self, keys: Iterable[Key]) -> list[bytes]:
        """Return the encoded keys whose values are not known, each once, without invalid ones."""
        known = self._fields
        values = self._values
        unread: dict[bytes, None] = {}
        for key in keys:
            field = known.get(key) if type(key) is str else None
            if field is None:
                try:
                    field = self._field(key)
                except BadStateError:
                    continue  # the bolt gets the error when it uses the key
            if field not in values:
                unread[field] = None
        return list(unread)

    def open(self, turn: StateTurn, keys: Iterable[Key] = (), unread: Sequence[bytes] = ()) -> None:
        """Work with this turn from now on; ``keys`` are the keys given to ``unread``, and
        ``unread`` what it returned, if the turn began without reading it.

        Raises AckerError if it cannot read them.
        """
        self._turn = turn
        good = self._cache.begin(turn)
        self._values.update(turn.found)
        self._read += turn.found
        missing = unread if good else self.unread(keys)
        if missing:
            self._values.update(zip(missing, turn.read(missing), strict=True))
            self._read += missing

    def guarded(self, execute: Callable[..., object]) -> Callable[..., None]:
        """Wrap ``execute``, so that its writes are undone if it raises."""
        journal = self._journal

        @wraps(execute)
        def guarded(*args: object) -> None:
            journal.clear()
            try:
                if (result := execute(*args)) is not None:
                    check_result(result, execute)
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
        return self._opened().recall(keys, self._cache.parallelism)

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
        self._written_in = turn
        self._cache.end(self._read)
        return turn.writing(self._bulk(), digest)

    def written(self) -> None:
        """Note that all calls of ``writing`` were made."""
        if self._written_in is not None:
            self._cache.written(self._written_in, self._writes)

    def _bulk(self) -> Writes:
        puts: dict[bytes, bytes] = {}
        deletes: list[bytes] = []
        increments: dict[bytes, int] = {}
        for field, write in self._writes.items():
            if type(write) is tuple:
                increments[field] = write[0]
            elif type(write) is bytes:
                puts[field] = write
            else:
                deletes.append(field)
        owners = self._cache.owners(self._writes)
        return Writes(
            puts=puts, deletes=deletes, increments=increments, marks=self.marks, owners=owners
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
            field = self._cache.encode(key)
        return field

    def _write(self, field: bytes, earlier: _Write | None, write: _Write) -> None:
        if self._turn is None:
            self._opened()
        self._journal.append((field, earlier))
        self._writes[field] = write

    def _current(self, field: bytes) -> bytes | int | None:
        """Return the value as this task sees it."""
        write = self._writes.get(field)
        return self._stored(field) if write is None else _written(write)

    def _number(self, field: bytes, key: Key) -> int:
        raw = self._current(field)
        if raw is None or isinstance(raw, int):
            return raw or 0
        if raw.isdigit():
            return int(raw)  # like decode_value, in a tenth of the time
        value = decode_value(raw)
        if type(value) is not int:
            raise BadStateError(
                f"{key!r:.60} cannot be incremented: its value is {value!r:.60}, not an int"
            )
        return value

    def _stored(self, field: bytes) -> bytes | int | None:
        turn = self._opened()
        if field not in self._values:
            self._check_reachable()
            try:
                [self._values[field]] = turn.read([field])
            except AckerError as error:
                self._error = error
                raise
            self._read.append(field)
        return self._values[field]

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
        # Not ``is_mine``, which would remember all entries of the other tasks.
        cache = self._cache
        return cache.parallelism == 1 or owner_of(field, cache.parallelism) == cache.task_index


def owner_of(field: bytes, parallelism: int) -> int:
    """Return the index of the task to which a fields grouping on the key sends tuples."""
    key = decode_key(field)
    return hash_values(key if isinstance(key, tuple) else (key,)) % parallelism


def _written(write: _Write) -> bytes | int | None:
    """Return the value after a write."""
    if type(write) is tuple:
        return write[1]
    return write if type(write) is bytes else None
