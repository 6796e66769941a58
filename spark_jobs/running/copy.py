"""The working copy of a bolt in one task, and the snapshot that outlives its process."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from tiercel.acker.inbox.chunk import Lineage
from tiercel.spark_jobs.bolts.bolt import StepBolt
from tiercel.spark_jobs.bolts.tuples import OPEN
from tiercel.spark_jobs.emitting.answers import Answers
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import RAISED, reason_of
from tiercel.spark_jobs.snapshots.packing import (
    BadSignatureError,
    Held,
    Packed,
    pack,
    sign,
    thread_roots,
    unpack,
    verified,
)
from tiercel.spark_jobs.topology.graph import Topology

log = logging.getLogger(__name__)

_MIB = 1024 * 1024
_LARGE = 8 * _MIB
_LIMIT = 256 * _MIB


class WorkingCopy:
    """One bolt task's copy of its bolt. Between two steps it is equal to the newest snapshot.

    A copy that cannot be trusted any more, because ``flush`` raised, is dropped; the next use makes
    a new one from the newest snapshot. One thread only.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the settings that a copy is made with
        self,
        topology: Topology,
        task: int,
        config: Mapping[str, Any],
        key: bytes,
        snapshot: bytes | None,
        wake: Callable[[], None],
    ) -> None:
        """``config`` stands beneath the component's own settings; ``key`` signs the
        snapshots of the run; ``wake`` makes the task look whether a thread has answered.
        """
        self._topology = topology
        self._task = task
        self.component = topology.component_of(task)
        self._config = config
        self._key = key
        # The newest one that is kept, verified; None: the copy is as ``prepare`` left it.
        self._kept = None if snapshot is None else self._content(snapshot)
        # The one of the last step that changed anything.
        self._packed = self._kept
        # Roots of tuples that only threads held when the copy before this one ended.
        self.lost: list[int] = [] if self._kept is None else thread_roots(self._kept)
        self._wake = wake
        self.answers = Answers(self.component, wake)
        self._bolt: StepBolt | None = None
        self._digest = b""
        self._local: set[str] = set()
        # True if the newest snapshot has no attribute.
        self._was_bare = False
        self.held = Held()

    def ready(self) -> StepBolt | BaseException:
        """The copy, made now if there is none; or what ``prepare`` raised."""
        if self._bolt is None:
            try:
                self._bolt = self._made()
            except RAISED as error:
                return error
        return self._bolt

    def snapshot(self, record: Record, lineage: Lineage) -> bytes | None:
        """Take a snapshot after a step; None if nothing changed since the one before.

        ``kept`` then adopts it. Where attributes cannot be packed the record is aborted, as by a
        ``flush`` that raises, and the copy dropped: what the next one does must not depend on a
        step that it does not know.
        """
        if self._bolt is None or record.aborted:
            return None
        left = sum([tup.state == OPEN and not tup.is_tick for tup in record.tuples])
        is_bare = not vars(self._bolt).keys() - self._local - self._bolt.transient
        if is_bare and self._was_bare and not left and not self.held.threads:
            return None
        self._was_bare = is_bare
        # Let go of here, so that a tuple which nothing else refers to is gone.
        self.held.tuples = []
        packed = self._pack(self._bolt, record, lineage)
        if packed is None:
            return None
        self.held = packed.held
        _tell_forgotten(record, left - sum(not tup.is_tick for tup in packed.held.tuples))
        digest = _digest(packed.content)
        if digest == self._digest:
            return None
        self._digest = digest
        self._packed = packed.content
        return sign(self._key, self._purpose, packed.content)

    def kept(self) -> None:
        """The newest snapshot is stored where the next attempt finds it."""
        self._kept = self._packed

    def drop(self) -> None:
        """Throw the copy away; the next use begins with the newest snapshot that was kept."""
        bolt = self._bolt
        self._bolt = None
        if bolt is None:
            return
        self.answers.end()
        if self._kept is not None:
            self.lost += thread_roots(self._kept)
        try:
            bolt.cleanup()
        except RAISED as error:
            log.warning(
                "%s[%d]: cleanup raised %s", self.component, self._task, reason_of(error),
                extra={"event": "bolt_cleanup_failed"},
            )  # fmt: skip

    @property
    def _purpose(self) -> str:
        return f"task {self._task}"

    def _made(self) -> StepBolt:
        bolt = cast("StepBolt", copy.deepcopy(self._topology.bolts[self.component].bolt))
        bolt.prepare(self._settings(), self._topology.context_of(self._task))
        # Anything that ``prepare`` made and cannot travel is made again in every process.
        packed = pack(bolt, set())
        self._local = set(packed.stuck)
        self._digest = _digest(packed.content)
        self.held = Held()
        self.answers = Answers(self.component, self._wake)
        if self._kept is not None:
            self.held = unpack(bolt, self._kept)
            self._digest = _digest(self._kept)
        return bolt

    def _settings(self) -> dict[str, Any]:
        return {**self._config, **self._topology.config_of(self.component).as_mapping()}

    def _content(self, snapshot: bytes) -> bytes | None:
        """Return the signed snapshot; None, and the bolt begins anew, for one that this run
        has not written.
        """
        try:
            return verified(self._key, self._purpose, snapshot)
        except BadSignatureError as error:
            log.warning(
                "%s; the bolt begins anew, and what it held times out",
                error,
                extra={"event": "snapshot_unreadable"},
            )
            return None

    def _pack(self, bolt: StepBolt, record: Record, lineage: Lineage) -> Packed | None:
        try:
            packed = pack(bolt, self._local, record, lineage)
        except RAISED as error:
            self._lose(record, reason_of(error))
            return None
        if len(packed.content) > _LIMIT:
            self._lose(
                record,
                (
                    f"its attributes have {len(packed.content) // _MIB} MiB, the limit is "
                    f"{_LIMIT // _MIB}"
                ),
            )
            return None
        if len(packed.content) > _LARGE:
            record.report(
                f"its attributes have {len(packed.content) // _MIB} MiB, pickled after each "
                "step in which they change: name in transient those that need not outlive the "
                "process, or use a StatefulBolt"
            )
        for name, why in packed.stuck.items():
            record.report(
                f"attribute {name!r} cannot be pickled ({why}): make it in prepare, or name "
                "it in transient"
            )
        self._local |= packed.stuck.keys()
        return packed

    def _lose(self, record: Record, why: str) -> None:
        reason = (
            f"cannot keep its attributes: {why}; name in transient those that need not outlive "
            "the process"
        )
        log.warning(
            "%s[%d]: %s", self.component, self._task, reason, extra={"event": "snapshot_failed"}
        )
        record.report(reason)
        record.abort(reason)
        self.drop()


def _tell_forgotten(record: Record, forgotten: int) -> None:
    if forgotten:
        record.report(
            f"{forgotten} tuples were neither acked nor failed nor kept in an attribute or a "
            "thread: their messages time out"
        )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
