"""The bolts' working copies in this process, and what becomes of them between two micro-batches."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from queues.chunk import Lineage
from spark_jobs.arrow_bolt import AnyBolt
from spark_jobs.collector import Record
from spark_jobs.levels import Plan
from spark_jobs.reasons import RAISED, reason_of
from spark_jobs.snapshots.packing import Held, Packed, pack, unpack
from spark_jobs.snapshots.sealing import BadSealError, seal, unseal
from spark_jobs.snapshots.store import SnapshotStore
from spark_jobs.tuples import OPEN

log = logging.getLogger(__name__)

_MIB = 1024 * 1024
_LARGE = 8 * _MIB
_LIMIT = 256 * _MIB
"""Half of what Redis takes as one value."""


@dataclass(kw_only=True, slots=True)
class Copy:
    """One prepared copy of a bolt, and the tuples it holds."""

    bolt: AnyBolt
    held: Held = field(default_factory=Held)
    snapshot: int | None = None
    """The micro-batch whose snapshot it is equal to between micro-batches; None: it is as ``prepare`` left it."""
    digest: bytes = b""
    """Of that snapshot."""
    local: set[str] = field(default_factory=set)
    """Attributes that cannot travel."""


class Instances:
    """One copy a bolt task, made when it is first needed. Between micro-batches each is equal to its newest snapshot.

    So a copy serves as long as no other process has run its task since. ``take`` before a micro-batch, ``keep`` after it; when
    an attempt ends in the middle, ``drop_all``: the next one begins with the snapshots from before.
    """

    def __init__(self, plan: Plan, config: Mapping[str, Any], store: SnapshotStore, key: bytes) -> None:
        """``config`` stands beneath each component's own settings: addresses and the like. ``key`` seals the snapshots."""
        self._plan, self._config, self._store, self._key = plan, config, store, key
        self._ready: dict[int, Copy] = {}

    def take(self, tasks: Sequence[int], batch: int) -> dict[int, Copy | BaseException]:
        """The copies of these tasks as they were before a micro-batch, or what ``prepare`` raised.

        Raises AckerError if the store cannot be reached.
        """
        newest = self._store.find(tasks, batch)
        return {task: self._copy(task, newest.get(task)) for task in tasks}

    def keep(self, batch: int, worked: Mapping[int, Record], lineage: Lineage) -> None:
        """Save what the tasks are after a micro-batch whose input has this lineage. Raises AckerError, StaleSaveError."""
        changed: dict[int, tuple[Copy, Packed, bytes]] = {}
        for task, record in worked.items():
            mine = self._ready[task]
            packed = self._packed(task, mine, record, lineage)
            if packed is None:
                continue
            mine.held = packed.held
            digest = _digest(packed.content)
            if digest != mine.digest:
                changed[task] = (mine, packed, digest)
        self._store.save(
            batch, {task: seal(self._key, _purpose(task, batch), packed.content) for task, (_, packed, _) in changed.items()}
        )
        for mine, _, digest in changed.values():
            mine.snapshot, mine.digest = batch, digest

    def drop(self, task_id: int) -> None:
        """Throw a copy away whose state cannot be trusted; the next use begins with the newest snapshot."""
        mine = self._ready.pop(task_id, None)
        if mine is not None:
            try:
                mine.bolt.cleanup()
            except RAISED as error:  # the copy is gone anyway
                log.warning("cleanup of task %d: %s", task_id, reason_of(error), extra={"event": "bolt_cleanup_failed"})

    def drop_all(self) -> None:
        for task_id in list(self._ready):
            self.drop(task_id)

    def _copy(self, task: int, newest: int | None) -> Copy | BaseException:
        mine = self._ready.get(task)
        if mine is not None and mine.snapshot == newest:
            return mine
        self.drop(task)
        content = self._load(task, newest) if newest is not None else None
        try:
            mine = self._prepared(task)
            if content:
                mine.held, mine.digest = unpack(mine.bolt, content), _digest(content)
        except RAISED as error:
            return error
        if content is not None:
            mine.snapshot = newest
        self._ready[task] = mine
        return mine

    def _load(self, task: int, batch: int) -> bytes | None:
        """The content of a snapshot; None if it is lost, and nothing (``b""``) if somebody else wrote it: it is passed over."""
        sealed = self._store.load(task, batch)
        try:
            return None if sealed is None else unseal(self._key, _purpose(task, batch), sealed)
        except BadSealError as error:
            log.warning("%s; the bolt begins anew, as prepare makes it", error, extra={"event": "snapshot_unreadable"})
            return b""

    def _prepared(self, task: int) -> Copy:
        component = self._plan.places[task].component
        topology = self._plan.topology
        bolt = copy.deepcopy(topology.bolts[component].bolt)
        bolt.prepare({**self._config, **topology.config_of(component).as_mapping()}, topology.context_of(task))
        mine = Copy(bolt=bolt)
        packed = pack(bolt, mine.local)
        # What ``prepare`` made and cannot travel, it makes in every process: no reason to complain.
        mine.local |= packed.stuck.keys()
        mine.digest = _digest(packed.content)
        return mine

    def _packed(self, task: int, mine: Copy, record: Record, lineage: Lineage) -> Packed | None:
        """None if it cannot be packed: the task goes back to its newest snapshot."""
        try:
            packed = pack(mine.bolt, mine.local, record, lineage)
        except RAISED as error:
            self._lose(task, record, reason_of(error))
            return None
        if len(packed.content) > _LIMIT:
            self._lose(task, record, f"its attributes have {len(packed.content) // _MIB} MiB, the limit is {_LIMIT // _MIB}")
            return None
        if len(packed.content) > _LARGE:
            record.report(
                f"its attributes have {len(packed.content) // _MIB} MiB, pickled after each micro-batch: name in transient"
                " those that need not travel, or use a StatefulBolt"
            )
        for name, why in packed.stuck.items():
            record.report(f"attribute {name!r} cannot travel ({why}): make it in prepare, or name it in transient")
        mine.local |= packed.stuck.keys()
        held = sum(not tup.is_tick for tup in packed.held.tuples)
        forgotten = sum(tup.state == OPEN and not tup.is_tick for tup in record.tuples) - held
        if forgotten:
            record.report(f"{forgotten} tuples were neither acked nor failed nor kept in an attribute: their messages time out")
        return packed

    def _lose(self, task: int, record: Record, why: str) -> None:
        reason = f"cannot keep its state: {why}"
        log.warning("task %d: %s", task, reason, extra={"event": "snapshot_failed"})
        record.report(reason)
        self.drop(task)


def _purpose(task: int, batch: int) -> str:
    return f"task {task} after micro-batch {batch}"


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
