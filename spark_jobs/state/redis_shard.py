"""The state of one bolt task in one shard.

Its Lua scripts, each as one typed function that returns an effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiercel.acker.redis.scripts import RedisEffect, RedisServer, script_source
from tiercel.spark_jobs.errors import BadStateError, StaleTurnError, StateLayoutError
from tiercel.spark_jobs.state.redis_keys import StateKeys
from tiercel.spark_jobs.state.redis_marks import MarkShard
from tiercel.spark_jobs.state.store import ENTRIES_AT_ONCE, Writes
from tiercel.spark_jobs.state.undo import value_before

# Entries per call that changes them: a few milliseconds, and half of what Lua can unpack.
SLICE = 2_000
_READ_AT_ONCE = 5_000
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
    # Values before this step, of the first ``SLICE`` fields that were asked for.
    values: list[bytes | None]


class StateShard:
    """Work of one bolt task in one shard."""

    def __init__(self, server: RedisServer, keys: StateKeys, task: int, shards: int) -> None:
        self._server = server
        self._component = keys.component
        self._keys = keys.of(task)
        self._entries = keys.entries
        self._undo = keys.undo(task)
        self._task = task
        self._shards = shards
        self.marks = MarkShard(server, keys, task)
        self._begin = server.script(_source("undo", "values", "begin"))
        self._write = server.script(_source("undo", "write"))
        self._read = server.script(_source("values", "read"))

    def begin(self, turn: Turn, committed: str, fields: Sequence[bytes]) -> RedisEffect[Begun]:
        """Begin a turn, and read. Raises StaleTurnError and StateLayoutError.

        ``committed`` is "?" for the home shard, and for the others what that replied.
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
            # There is more to take back than one call may: seldom, so that a round trip for
            # each does no harm.
            while reply[0] == _MORE:
                args[2] = reply[1]
                mine = str(replace(turn, attempt=reply[1]))
                for logged, record in zip(reply[4][::2], reply[4][1::2], strict=True):
                    self.marks.take_back(mine, logged, record).perform()
                reply = self._begin(self._keys, args, list, "begin with the state").perform()
            return self._begun(turn, reply)

        return self._begin(self._keys, args, read, "begin with the state")

    def read(
        self, fields: Sequence[bytes], *, through: bool
    ) -> list[RedisEffect[list[bytes | None]]]:
        """Read values, ``through`` the undo log or as they are."""
        return [
            self._read(
                self._keys,
                ["1" if through else "", *fields[start : start + _READ_AT_ONCE]],
                _values,
                "read the state",
            )
            for start in range(0, len(fields), _READ_AT_ONCE)
        ]

    def committed(self) -> RedisEffect[str]:
        """Read the "run step" of this task's last final commit, in its home shard."""
        words = ("HGET", self._keys[2], "committed")
        return self._server.command(*words, read=_text, verb="read the state")

    def scan(self, *, through: bool) -> Iterator[tuple[bytes, bytes]]:
        """Read all entries, ``through`` the undo log or as they are."""
        undo: dict[bytes, bytes] = {}
        if through:
            undo = self._server.command(
                "HGETALL", self._undo, read=_pairs, verb="read the state"
            ).perform()
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
        """Write entries, or marks alone, as the ``number``-th call of a turn; with a digest as the
        last one of its commit.

        Raises StaleTurnError, BadStateError and TurnAgainError.
        """
        last = ("", "") if digest is None else (turn.place, digest)
        if writes.marks:
            mine = (turn.run_number, str(turn))
            return self.marks.remember(mine, number, writes.marks, last)
        args: list[Any] = [
            turn.run_number,
            str(turn),
            number,
            *last,
            len(writes.puts),
            len(writes.deletes),
        ]
        for put in writes.puts.items():
            args += put
        args += writes.deletes
        for increment in writes.increments.items():
            args += increment
        return self._write(self._keys, args, _written, "write the state")

    def _begun(self, turn: Turn, reply: Any) -> Begun:
        verdict, number, committed, digest, *found = reply
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
            values=_values(found),
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
    """Read all entries as they are."""
    cursor = -1
    while cursor != 0:
        words = ("HSCAN", entries, max(cursor, 0), "COUNT", at_once)
        at, page = server.command(*words, read=tuple, verb="read the state").perform()
        cursor = int(at)
        yield from _pairs(page).items()


def _written(verdict: int) -> bool:
    if verdict == 0:
        raise StaleTurnError(
            "a later attempt or run has taken the bolt task over: what this one wrote is taken back"
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


def _pairs(reply: Sequence[bytes]) -> dict[bytes, bytes]:
    """Read fields and values that come in turn."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _source(*names: str) -> str:
    return script_source(*names, package="tiercel.spark_jobs.state")
