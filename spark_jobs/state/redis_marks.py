"""The marks of one bolt task in one shard: which tuples its component has applied.

Its Lua scripts, each as one typed function that returns an effect.

A mark lies in one of 8,192 buckets per component and shard: hashes that stay listpacks up to 512
marks each (hash-max-listpack-entries, 4 million marks per shard), of some 28 bytes and what the
tuple emitted. Of a key's 16 bytes the last five choose shard and bucket, the others are its field.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tiercel.acker.redis.scripts import RedisEffect, RedisServer, script_source
from tiercel.spark_jobs.errors import StaleTurnError, TurnAgainError
from tiercel.spark_jobs.state.redis_keys import StateKeys
from tiercel.spark_jobs.state.store import AGED_EVERY_S

# Marks per call that makes them.
SLICE = 1_000
_RECALLED_AT_ONCE = 2_000
_BUCKETS = 1 << 13
_FIELD = 11
_KEY_BYTES = 16
# Of the record of a call in an undo log: its kind, and when it was.
_BEFORE_KEYS = 4
# All buckets are looked through for old marks in a tenth of the time that marks are kept, within
# these bounds in seconds.
_SHORTEST_PASS_S = 60
_LONGEST_PASS_S = 3_600

# The record of a mark; or, of one that may be taken back, the number of the task that made it and
# its "run step".
Recalled = bytes | tuple[int, str]


def mark_shard(key: bytes, shards: int) -> int:
    """The shard of a mark."""
    return 0 if shards == 1 else int.from_bytes(key[_FIELD : _FIELD + 2]) % shards


class MarkShard:
    """Marks of one bolt task in one shard. One thread only."""

    def __init__(self, server: RedisServer, keys: StateKeys, task: int) -> None:
        self._server = server
        self._keys = keys
        self._task = task
        # The bucket to look through next for old marks. Another one in each process: one that is
        # restarted often comes to all of them too.
        self._sweep = secrets.randbelow(_BUCKETS)
        self._remember = server.script(_source("clock", "remember"))
        self._recall = server.script(_source("recall"))
        self._take_back = server.script(_source("take_back_marks"))
        self._age = server.script(_source("clock", "age"))

    def remember(
        self,
        turn: tuple[int, str],
        number: int,
        marks: Mapping[bytes, bytes],
        last: tuple[str, str],
    ) -> RedisEffect[bool]:
        """Make marks, as the ``number``-th call of a turn: run number and name of it.

        ``last`` is ("run step", digest) in the last call of a commit, else two empty texts. Raises
        StaleTurnError, TurnAgainError.
        """
        _, _, turn_key, undo = self._keys.of(self._task)
        keys = [self._keys.run, turn_key, undo, *self._buckets(marks)]
        args = [*turn, number, *last, b"".join(marks), *marks.values()]
        return self._remember(keys, args, _remembered, "remember the applied tuples")

    def recall(
        self, keys: Sequence[bytes], tasks: int, *, through: bool
    ) -> list[RedisEffect[dict[bytes, Recalled]]]:
        """Read the marks that there are, ``through`` the undo log of this task or as they are; the
        component has this many tasks.
        """
        others = [task for task in range(tasks) if task != self._task]
        logs = [key for task in others for key in self._keys.of(task)[2:]]

        def read(part: Sequence[bytes], reply: Any) -> dict[bytes, Recalled]:
            return {
                part[number - 1]: (others[one[0] - 1], one[1].decode())
                if isinstance(one, list)
                else one
                for number, one in zip(reply[::2], reply[1::2], strict=True)
            }

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
        """Take the marks of one call back: its field in the undo log, and its record there.

        Raises StaleTurnError.
        """
        marks = record[_BEFORE_KEYS:]
        made = [marks[at : at + _KEY_BYTES] for at in range(0, len(marks), _KEY_BYTES)]
        keys = [*self._keys.of(self._task)[1:], *self._buckets(made)]
        args = [turn, logged, record]
        return self._take_back(keys, args, _remembered, "take back the applied tuples")

    def age(self, retention_s: int) -> RedisEffect[bool]:
        """Let the clock of the marks run on, and forget old ones in the next buckets."""
        pass_s = min(max(retention_s / 10, _SHORTEST_PASS_S), _LONGEST_PASS_S)
        first = self._sweep
        after = first + min(_BUCKETS, math.ceil(_BUCKETS * AGED_EVERY_S / pass_s))
        self._sweep = after % _BUCKETS
        names = self._keys.buckets(_BUCKETS)
        looked = [names[bucket % _BUCKETS] for bucket in range(first, after)]
        return self._age([self._keys.run, *looked], [retention_s], bool, "forget old marks")

    def sizes(self) -> list[RedisEffect[int]]:
        """Count the marks in each bucket."""
        return [
            self._server.command("HLEN", bucket, read=int, verb="count marks")
            for bucket in self._keys.buckets(_BUCKETS)
        ]

    def _buckets(self, marks: Iterable[bytes]) -> list[str]:
        names = self._keys.buckets(_BUCKETS)
        return [names[(key[14] << 8 | key[15]) % _BUCKETS] for key in marks]


def _remembered(verdict: int) -> bool:
    if verdict == 0:
        raise StaleTurnError(
            "a later attempt or run has taken the bolt task over: what this one wrote is taken back"
        )
    if verdict == 3:
        raise TurnAgainError("another task has applied one of the tuples meanwhile")
    return True


def _source(*names: str) -> str:
    return script_source(*names, package="tiercel.spark_jobs.state")
