"""Reads marks of one turn in all shards, those that are final."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

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

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The records, in order; raises TurnAgainError."""
        found = self._read(keys)
        wait_s = _SHORTEST_WAIT_S
        until = time.monotonic() + _PATIENCE_S
        while unsure := [key for key, one in found.items() if isinstance(one, tuple)]:
            if time.monotonic() > until:
                raise TurnAgainError("another task is applying one of the tuples")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            found |= self._read(unsure)
        return [one if isinstance(one, bytes) else None for one in map(found.get, keys)]

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, Recalled]:
        parts: dict[int, list[bytes]] = {}
        if len(self._shards) == 1:
            parts[0] = list(keys)
        else:
            for key in keys:
                parts.setdefault(mark_shard(key, len(self._shards)), []).append(key)
        effects = [
            effect
            for shard, part in parts.items()
            for effect in self._shards[shard].marks.recall(part, self._tasks, through=self._through)
        ]
        replies = [one for some in perform_all(effects) for one in some]
        asked = [key for part in parts.values() for key in part]
        found: dict[bytes, Recalled] = dict(zip(asked, replies, strict=True))
        if any(isinstance(one, tuple) for one in replies):
            self._ask_home(found)
        return found

    def _ask_home(self, found: dict[bytes, Recalled]) -> None:
        """Ask the home shards of the tasks that made a mark whether its commit is final."""
        unsure: Mapping[bytes, tuple[int, str]] = {
            key: one for key, one in found.items() if isinstance(one, tuple)
        }
        tasks = {task for task, _ in unsure.values()}
        final = {task: self._committed(task) for task in tasks}
        sure = [key for key, (task, place) in unsure.items() if final[task] == place]
        if sure:
            # Read anew, as it is now: it was final before, so it stays.
            effects = [
                effect
                for key in sure
                for effect in self._shards[mark_shard(key, len(self._shards))].marks.recall(
                    [key], 0, through=self._through
                )
            ]
            found.update(zip(sure, [one for [one] in perform_all(effects)], strict=True))

    def _committed(self, task: int) -> str:
        shards = self._shards_of(task)
        return shards[task % len(shards)].committed().perform()
