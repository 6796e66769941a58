"""The state of one bolt task in one shard: its entries, and the marks of the tuples that its
component has applied. Each Lua script has one typed function that returns an effect.

A mark is in one of 32,768 buckets per component and shard. A bucket is a hash that stays a listpack
up to 512 marks (hash-max-listpack-entries; 16 million marks per shard). A mark takes some 30 bytes
plus the tuple's emissions. Of a key's 16 bytes the first eleven are the field; the other five, and
two bits of the eleventh, choose shard and bucket.
"""

from __future__ import annotations

import json
import math
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import quote

from tiercel.acker.ids import mix
from tiercel.acker.layout import shard_prefix
from tiercel.acker.redis.scripts import RedisEffect, RedisServer, pairs, script_source
from tiercel.spark_jobs.errors import (
    BadStateError,
    StaleTurnError,
    StateLayoutError,
    TurnAgainError,
)
from tiercel.spark_jobs.state.store import AGED_EVERY_S, ENTRIES_AT_ONCE, Writes, value_before


class StateKeys:
    """The key names of one component in one shard.

    They share the ledger's hash tags and shards. Each component has, in each shard:

    state:COMPONENT             hash    the entries
    state-run:COMPONENT         hash    run_number: of the newest run; shards: their number when the
                                        entries were written; tasks: the highest index of a task
                                        that has a turn, plus one; ran: seconds that the
                                        clock of the marks has run, ran_at: the server's clock then;
                                        marks: the number of marks; foreign:TASK: commits of
                                        other tasks that wrote entries of this one; foreign:*:
                                        commits and undone ones that may concern entries of all;
                                        layout: 2 if the marks are in 32,768 buckets, not in 8,192;
                                        imported: the number of the import that replaced them;
                                        born: a random word, by which a driver sees that the
                                        server has lost its memory
    state-once:COMPONENT:BUCKET hash    marks: 11 bytes of a key to the mark's time (3 bytes, by
                                        ``ran``: a bit that is set, and units of 64 s) and its
                                        record: 16 bytes of a digest of the body, and the tuple's
                                        emissions. Older versions: units of 16 s without that
                                        bit, and 4 bytes of a digest
    state-import:COMPONENT      hash    entries of an import, until they replace the others; with
                                        :BUCKET marks
    state-turn:COMPONENT:TASK   hash    turn: "run step attempt" of the turn that may write; calls:
                                        the number of its writes so far; logged: "run step" that
                                        the undo log belongs to; packed: the number of the last
                                        write with a packed record; in the task's home shard also
                                        attempts: drawn so far; committed, digest: "run step"
                                        and digest of the last commit
    state-undo:COMPONENT:TASK   hash    the undo log of the task's last step: field to
                                        record, see ``value_before``; "!" with the number of
                                        a call that made marks to its time and their keys; "#"
                                        with the number of a write to its small increments, packed
                                        (undo.lua). No key of an entry begins with "!" or "#"

    TASK is the index within the component. A commit over several shards is final once the task's
    home shard has its digest.
    """

    def __init__(self, topology: str, shard: int, component: str) -> None:
        prefix = shard_prefix(topology, shard)
        name = quote(component, safe="")
        self.component = component
        self.entries = f"{prefix}state:{name}"
        self.run = f"{prefix}state-run:{name}"
        self._once = f"{prefix}state-once:{name}"
        self._turn = f"{prefix}state-turn:{name}"
        self._undo = f"{prefix}state-undo:{name}"
        self.staged = f"{prefix}state-import:{name}"

    def undo(self, task: int) -> str:
        return f"{self._undo}:{task}"

    def buckets(self, numbers: Iterable[int]) -> list[str]:
        """Return the buckets of marks with these numbers."""
        # Made anew: 32,768 names kept would not be in the processor's cache when they are used.
        once = self._once
        return [f"{once}:{number:x}" for number in numbers]

    def staged_buckets(self, numbers: Iterable[int]) -> list[str]:
        """Return the keys of imported buckets with these numbers."""
        return [f"{self.staged}:{number:x}" for number in numbers]

    def of(self, task: int) -> list[str]:
        """Return the keys that the scripts take for a task."""
        return [self.entries, self.run, f"{self._turn}:{task}", self.undo(task)]


def shard_of(field: bytes, shards: int) -> int:
    """Return the shard of an entry: the same in every process, run and parallelism."""
    return mix(zlib.crc32(field)) % shards if shards > 1 else 0


# Marks per call that makes them.
MARKS_AT_ONCE = 1_000
_RECALLED_AT_ONCE = 2_000
BUCKETS = 1 << 15
# Buckets into which one of an older version is split, by the last byte of the field.
PARTS = 4
# Old buckets per call that splits them.
_SPLIT_AT_ONCE = 16
# Bytes of a mark's field; and of its time, with which its record begins.
FIELD_BYTES = 11
TIME_BYTES = 3
_KEY_BYTES = 16
# Bytes before the keys in a call's undo record: its kind and its time.
_BEFORE_KEYS = 4
# One pass over all buckets, to delete old marks, takes a tenth of their retention, within these
# bounds in seconds.
_SHORTEST_PASS_S = 60
_LONGEST_PASS_S = 3_600

# The record of a mark; or, if the mark may still be undone, the number of the task that made it and
# its "run step".
Recalled = bytes | tuple[int, str]


def mark_shard(key: bytes, shards: int) -> int:
    """Return the shard of a mark."""
    return 0 if shards == 1 else int.from_bytes(key[FIELD_BYTES : FIELD_BYTES + 2]) % shards


class MarkShard:
    """Marks of one bolt task in one shard. For one thread."""

    def __init__(self, server: RedisServer, keys: StateKeys, task: int) -> None:
        self._server = server
        self._keys = keys
        self._task = task
        # The next bucket to search for old marks. Random at first, so that frequent restarts do not
        # keep processes from reaching all buckets.
        self._sweep = secrets.randbelow(BUCKETS)
        self._remember = server.script(_source("clock", "remember"))
        self._recall = server.script(_source("recall"))
        self._take_back = server.script(_source("take_back_marks"))
        self._age = server.script(_source("clock", "age"))
        self._split = server.script(_source("split"))

    def remember(
        self,
        turn: tuple[int, str],
        number: int,
        marks: Mapping[bytes, bytes],
        last: tuple[str, str],
    ) -> RedisEffect[bool]:
        """Make marks, as the ``number``-th call of ``turn``, its run number and name.

        ``last`` is ("run step", digest) in the last call of a commit, else two empty texts. Raises
        StaleTurnError, TurnAgainError.
        """
        _, _, turn_key, undo = self._keys.of(self._task)
        keys = [self._keys.run, turn_key, undo, *self._buckets(marks)]
        args = [*turn, number, *last, b"".join(marks), *marks.values()]
        effect = self._remember(keys, args, _remembered, "remember the applied tuples")
        return _with_size(effect, marks)

    def recall(
        self, keys: Sequence[bytes], tasks: int, *, through: bool
    ) -> list[RedisEffect[tuple[dict[bytes, Recalled], Sequence[bytes]]]]:
        """Read the existing marks, ``through`` the undo log of this task or as they are; the
        component has this many tasks. Each call returns marks, and the keys that are still to be
        read, because the marks before them are large.
        """
        others = [task for task in range(tasks) if task != self._task]
        logs = [key for task in others for key in self._keys.of(task)[2:]]

        def read(
            part: Sequence[bytes], reply: Any
        ) -> tuple[dict[bytes, Recalled], Sequence[bytes]]:
            looked, *existing = reply
            found = {
                part[number - 1]: (others[one[0] - 1], one[1].decode())
                if isinstance(one, list)
                else one
                for number, one in zip(existing[::2], existing[1::2], strict=True)
            }
            return found, part[looked:]

        effects = []
        for start in range(0, len(keys), _RECALLED_AT_ONCE):
            part = keys[start : start + _RECALLED_AT_ONCE]
            words = [self._keys.undo(self._task), *logs, *self._buckets(part)]
            args = [len(others), "1" if through else "", b"".join(part)]
            effects.append(
                self._recall(words, args, partial(read, part), "recall the applied tuples")
            )
        return effects

    def take_back(self, turn: str, logged: bytes, record: bytes) -> RedisEffect[bool]:
        """Undo the marks of one call, given by its field and record in the undo log.

        Raises StaleTurnError.
        """
        marks = record[_BEFORE_KEYS:]
        made = [marks[at : at + _KEY_BYTES] for at in range(0, len(marks), _KEY_BYTES)]
        keys = [*self._keys.of(self._task)[1:], *self._buckets(made)]
        args = [turn, logged, record]
        return self._take_back(keys, args, _remembered, "take back the applied tuples")

    def age(self, retention_s: int) -> RedisEffect[bool]:
        """Advance the clock of the marks, and delete old ones in the next buckets."""
        pass_s = min(max(retention_s / 10, _SHORTEST_PASS_S), _LONGEST_PASS_S)
        first = self._sweep
        after = first + min(BUCKETS, math.ceil(BUCKETS * AGED_EVERY_S / pass_s))
        self._sweep = after % BUCKETS
        looked = self._keys.buckets([number % BUCKETS for number in range(first, after)])
        return self._age([self._keys.run, *looked], [retention_s], bool, "forget old marks")

    def split(self, run_number: int) -> list[RedisEffect[int]]:
        """Prepare to split the buckets of an older version; each call returns the number of its
        marks. From the first call on, earlier runs can make no marks. Each raises StaleTurnError.
        """
        old = BUCKETS // PARTS
        effects = []
        for start in range(0, old, _SPLIT_AT_ONCE):
            firsts = range(start, min(start + _SPLIT_AT_ONCE, old))
            numbers = [first + part * old for first in firsts for part in range(PARTS)]
            words = [self._keys.run, *self._keys.buckets(numbers)]
            effects.append(
                self._split(words, [run_number, PARTS], _counted, "split the buckets of marks")
            )
        return effects

    def _buckets(self, marks: Iterable[bytes]) -> list[str]:
        # As ``bucket_of``, without a call per mark.
        parts, old = PARTS, BUCKETS // PARTS
        return self._keys.buckets(
            [key[10] % parts * old + (key[14] << 8 | key[15]) % old for key in marks]
        )


def bucket_of(field: bytes, number: int) -> int:
    """Return the bucket of a mark by its field and the number of its bucket, now or in an older
    version.
    """
    old = BUCKETS // PARTS
    return field[FIELD_BYTES - 1] % PARTS * old + number % old


def _counted(verdict: int) -> int:
    if verdict < 0:
        raise StaleTurnError("a later run has begun")
    return verdict


def _remembered(verdict: int) -> bool:
    if verdict == 0:
        raise StaleTurnError(
            "a later attempt or run has taken over the bolt task: the writes of this one are undone"
        )
    if verdict == 3:
        raise TurnAgainError("another task has applied one of the tuples meanwhile")
    return True


# Entries per write: a few milliseconds, and half of what Lua can unpack. Their values, unless it
# is a single one, and the emissions of marks have at most this many bytes.
SLICE = 2_000
SLICE_BYTES = 4 * 1024 * 1024
_LARGE_BYTES = SLICE_BYTES // 4
_READ_AT_ONCE = 5_000
_FIRST_SCANNED = 4
# Amounts below are added by Lua, whose numbers are exact up to 2**53, to numbers of 15 digits.
_SMALL = 1 << 50
_STALE, _MORE, BEGUN, _OTHER_SHARDS = range(4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A turn's numbers."""

    run_number: int
    step: int
    # 0: not drawn yet.
    attempt: int = 0

    @property
    def place(self) -> str:
        return f"{self.run_number} {self.step}"

    def __str__(self) -> str:
        return f"{self.place} {self.attempt}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A shard's answer to ``begin``."""

    attempt: int
    # Place of the last commit, as the home shard knows it.
    committed: str
    digest: str
    # The turn before with its calls, and the foreign writes, see ``StateTurn.follows``.
    seen: tuple[bytes, bytes]
    # Values before this step of the first requested fields: of ``SLICE``, or fewer if they are
    # large.
    values: list[bytes | None]


class StateShard:
    """Work of one bolt task in one shard."""

    def __init__(self, server: RedisServer, keys: StateKeys, task: int, shards: int) -> None:
        self._server = server
        self._component = keys.component
        self._keys = keys.of(task)
        self._keys_of = keys.of
        self._entries = keys.entries
        self._undo = keys.undo(task)
        self._task = task
        self._shards = shards
        self.marks = MarkShard(server, keys, task)
        self._begin = server.script(_source("undo", "values", "begin"))
        self._write = server.script(_source("undo", "add", "write"))
        self._read = server.script(_source("values", "read"))
        self._forget_turns = server.script(_source("forget_turns"))

    def begin(self, turn: Turn, committed: str, fields: Sequence[bytes]) -> RedisEffect[Begun]:
        """Begin a turn, and read. Raises StaleTurnError and StateLayoutError.

        ``committed`` is "?" for the home shard, and the home shard's reply for the others.
        """
        args = [
            turn.run_number,
            turn.step,
            turn.attempt,
            self._shards,
            committed,
            SLICE,
            self._task,
            *fields[:SLICE],
        ]

        def read(reply: Any) -> Begun:
            # One call may not undo or unpack all. This is rare, so extra round trips do no harm.
            while reply[0] == _MORE:
                args[2] = reply[1]
                mine = str(replace(turn, attempt=reply[1]))
                for logged, record in zip(reply[4][::2], reply[4][1::2], strict=True):
                    self.marks.take_back(mine, logged, record).perform()
                reply = self._begin(self._keys, args, list, "begin with the state").perform()
            return self._begun(turn, reply)

        return self._begin(self._keys, args, read, "begin with the state")

    def forget_turns(self, run_number: int, tasks: range) -> RedisEffect[bool]:
        """Forget the turns of these tasks, the last ones, which the run no longer has; False if a
        later run has begun, or if they have left something to undo.
        """
        keys = [key for task in tasks for key in self._keys_of(task)[2:]]
        args = [run_number, tasks.start]
        return self._forget_turns([self._keys[1], *keys], args, bool, "forget tasks that are gone")

    def read(self, fields: Sequence[bytes], *, through: bool) -> RedisEffect[list[bytes | None]]:
        """Read the values of the first fields, as many as one call may read, ``through`` the undo
        log or as they are.
        """
        args = ["1" if through else "", *fields[:_READ_AT_ONCE]]
        return self._read(self._keys, args, _values, "read the state")

    def committed(self) -> RedisEffect[str]:
        """Read the "run step" of this task's last final commit, in its home shard."""
        words = ("HGET", self._keys[2], "committed")
        return self._server.command(*words, read=_text, verb="read the state")

    def scan(self, *, through: bool) -> Iterator[tuple[bytes, bytes]]:
        """Read all entries, ``through`` the undo log or as they are."""
        undo: dict[bytes, bytes] = {}
        if through:
            undo = dict(scan(self._server, self._undo))
        left = dict(undo)
        for one, value in scan(self._server, self._entries):
            left.pop(one, None)
            before = value_before(value, undo.get(one))
            if before is not None:
                yield one, before
        for one, record in left.items():
            before = value_before(None, record)
            if before is not None:
                yield one, before

    def write(
        self, turn: Turn, number: int, writes: Writes, digest: str | None
    ) -> RedisEffect[bool]:
        """Write entries, or only marks, as the ``number``-th call of a turn; a digest marks the
        last call of its commit.

        Raises StaleTurnError, BadStateError and TurnAgainError.
        """
        last = ("", "") if digest is None else (turn.place, digest)
        if writes.marks:
            mine = (turn.run_number, str(turn))
            return self.marks.remember(mine, number, writes.marks, last)
        small, large = writes.increments, dict[bytes, int]()
        amounts = list(small.values())
        if amounts and (max(amounts) >= _SMALL or min(amounts) <= -_SMALL):
            large = {one: by for one, by in small.items() if not -_SMALL < by < _SMALL}
            small = {one: by for one, by in small.items() if one not in large}
            amounts = list(small.values())
        args: list[Any] = [
            turn.run_number,
            str(turn),
            number,
            *last,
            len(writes.puts),
            len(writes.deletes),
            len(small),
            json.dumps(amounts),
            "*" if writes.owners is None else " ".join(map(str, writes.owners)),
            *chain.from_iterable(writes.puts.items()),
            *writes.deletes,
            *small,
            *chain.from_iterable(large.items()),
        ]
        effect = self._write(self._keys, args, _written, "write the state")
        return _with_size(effect, writes.puts)

    def _begun(self, turn: Turn, reply: Any) -> Begun:
        verdict, number, committed, digest, *more = reply
        if verdict == _STALE:
            raise StaleTurnError(
                f"step {turn.step} of run {turn.run_number} comes too late: a later one uses the "
                f"state of {self._component!r}"
            )
        if verdict == _OTHER_SHARDS:
            raise other_shards(self._component, number, self._shards)
        return Begun(
            attempt=number,
            committed=committed.decode(),
            digest=digest.decode(),
            seen=(more[0], more[1]),
            values=_values(more[2:]),
        )


def other_shards(component: str, then: int, now: int) -> StateLayoutError:
    """Return the error for a state that was written with another number of shards."""
    return StateLayoutError(
        f"the state of {component!r} was written with ackers={then}, now it is {now}: set "
        f"ackers={then} again, or remove the state"
    )


def scan(
    server: RedisServer, entries: str, at_once: int = ENTRIES_AT_ONCE
) -> Iterator[tuple[bytes, bytes]]:
    """Read all entries as they are, in calls of at most ``at_once`` entries: of fewer if their
    values are large.
    """
    cursor, count = -1, min(at_once, _FIRST_SCANNED)
    while cursor != 0:
        words = ("HSCAN", entries, max(cursor, 0), "COUNT", count)
        at, page = server.command(*words, read=tuple, verb="read the state").perform()
        cursor = int(at)
        size = sum(map(len, page)) or 1
        count = max(1, min(at_once, count * SLICE_BYTES // size))
        yield from pairs(page).items()


def bytes_of(values: Mapping[bytes, bytes]) -> int:
    """Return the size of all values."""
    return sum(map(len, values.values()))


def _with_size(effect: RedisEffect[bool], values: Mapping[bytes, bytes]) -> RedisEffect[bool]:
    """Return the effect, marked as large if the values that it sends are."""
    return replace(effect, large=True) if bytes_of(values) > _LARGE_BYTES else effect


def _written(verdict: int) -> bool:
    if verdict == 0:
        raise StaleTurnError(
            "a later attempt or run has taken over the bolt task: the writes of this one are undone"
        )
    if verdict == 2:
        raise BadStateError("an increment met an entry that is no number of 64 bits any more")
    return True


def _text(reply: Any) -> str:
    return (reply or b"").decode()


def _values(reply: Any) -> list[bytes | None]:
    values, records = reply
    if not records:
        return list(values)
    return [value_before(value, record) for value, record in zip(values, records, strict=True)]


def _source(*names: str) -> str:
    return script_source(*names, package="tiercel.spark_jobs.state")
