"""Reads marks of one turn in all shards, those that are final."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tiercel.acker.connection.server import RedisEffect
from tiercel.acker.effects import perform_all
from tiercel.spark_jobs.errors import TurnAgainError
from tiercel.spark_jobs.state.redis_marks import Recalled, mark_shard
from tiercel.spark_jobs.state.redis_shard import StateShard

# A commit of several calls is complete after milliseconds, or its process has died: then
# another attempt at its task completes it, or the next run takes it back.
_PATIENCE_S = 5.0
_SHORTEST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.25


class MarkReader:
    """One thread only."""

    def __init__(
        self,
        shards: Sequence[StateShard],
        shards_of: Callable[[int], Sequence[StateShard]],
        tasks: int,
        *,
        through: bool,
    ) -> None:
        """``shards`` are those of this task, ``shards_of`` those of another one."""
        self._shards = shards
        self._shards_of = shards_of
        self._tasks = tasks
        self._through = through

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The records of the marks that there are; raises TurnAgainError."""
        found = self._read(keys)
        wait_s = _SHORTEST_WAIT_S
        until = time.monotonic() + _PATIENCE_S
        while unsure := [key for key, one in found.items() if isinstance(one, tuple)]:
            if time.monotonic() > until:
                raise TurnAgainError("another task is applying one of the tuples")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            for key in unsure:
                del found[key]
            found |= self._read(unsure)
        return {key: one for key, one in found.items() if isinstance(one, bytes)}

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, Recalled]:
        found: dict[bytes, Recalled] = {}
        for some in perform_all(self._recalling(keys, self._tasks)):
            found |= some
        unsure = {key: one for key, one in found.items() if isinstance(one, tuple)}
        if unsure:
            self._ask_home(unsure, found)
        return found

    def _recalling(
        self, keys: Sequence[bytes], tasks: int
    ) -> list[RedisEffect[dict[bytes, Recalled]]]:
        parts: dict[int, Sequence[bytes]] = {0: keys}
        if len(self._shards) > 1:
            in_shards: dict[int, list[bytes]] = {}
            for key in keys:
                in_shards.setdefault(mark_shard(key, len(self._shards)), []).append(key)
            parts = dict(in_shards)
        return [
            effect
            for shard, part in parts.items()
            for effect in self._shards[shard].marks.recall(part, tasks, through=self._through)
        ]

    def _ask_home(
        self, unsure: Mapping[bytes, tuple[int, str]], found: dict[bytes, Recalled]
    ) -> None:
        """Ask the home shards of the tasks that made a mark whether its commit is final."""
        final = {task: self._committed(task) for task in {task for task, _ in unsure.values()}}
        sure = [key for key, (task, place) in unsure.items() if final[task] == place]
        for key in sure:
            del found[key]
        # Read anew, as it is now: it was final before, so it stays.
        for some in perform_all(self._recalling(sure, 0)):
            found |= some

    def _committed(self, task: int) -> str:
        shards = self._shards_of(task)
        return shards[task % len(shards)].committed().perform()
