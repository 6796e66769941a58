"""Layout of states in Redis: the key names, and the shard of an entry. Pure.

Beside the ledger, with its hash tag and its shards; each component has, in each shard:

    state:COMPONENT             hash    the entries
    state-run:COMPONENT         hash    run_number: of the newest run; shards: their number when the
                                        entries were written; tasks: the highest index of a task
                                        that ever began a turn, and one; ran: seconds that the
                                        memory of marks has run, ran_at: the server's clock then;
                                        marks: how many there are
    state-once:COMPONENT:BUCKET hash    marks: 11 bytes of a key to when it was made (3 bytes, by
                                        ``ran``: a bit that is set, and units of 64 s) and its
                                        record: 16 bytes of a digest of the body, and what was
                                        emitted. Of a version before: units of 16 s without that
                                        bit, and 4 bytes of a digest
    state-turn:COMPONENT:TASK   hash    turn: "run step attempt" of who may write; calls: how
                                        many writes it has done; logged: "run step" that the
                                        undo log belongs to; in the task's home shard also
                                        attempts: drawn so far; committed, digest: "run step"
                                        and digest of the last commit
    state-undo:COMPONENT:TASK   hash    the undo log of the task's last step: field to
                                        record, see ``undo``; and "!" with the number of a call
                                        that made marks to when, and their keys

TASK is the index within the component. The home shard of a task holds the one fact that makes a
commit over several shards final.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from urllib.parse import quote

from tiercel.acker.ids import mix
from tiercel.acker.layout import shard_prefix


class StateKeys:
    """The key names of one component in one shard."""

    def __init__(self, topology: str, shard: int, component: str) -> None:
        prefix = shard_prefix(topology, shard)
        name = quote(component, safe="")
        self.component = component
        self.entries = f"{prefix}state:{name}"
        self.run = f"{prefix}state-run:{name}"
        self._once = f"{prefix}state-once:{name}"
        self._turn = f"{prefix}state-turn:{name}"
        self._undo = f"{prefix}state-undo:{name}"

    def undo(self, task: int) -> str:
        return f"{self._undo}:{task}"

    def buckets(self, count: int) -> list[str]:
        """Return the buckets of marks, by number."""
        return _numbered(self._once, count)

    def of(self, task: int) -> list[str]:
        """Return what the scripts are given."""
        return [self.entries, self.run, f"{self._turn}:{task}", self.undo(task)]


@lru_cache(maxsize=64)
def _numbered(prefix: str, count: int) -> list[str]:
    """Names that a step needs by the thousand: made once per process."""
    return [f"{prefix}:{number:x}" for number in range(count)]


def shard_of(field: bytes, shards: int) -> int:
    """The shard of an entry: the same in every process, run and parallelism."""
    return mix(zlib.crc32(field)) % shards if shards > 1 else 0
