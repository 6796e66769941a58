"""The spout's collector: gathers the tuples of the next batch. One thread only, the spout's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Protocol

from tiercel.acker.inbox.chunk import is_line
from tiercel.queues.message.identity import Identified
from tiercel.queues.spout import MsgId
from tiercel.spark_jobs.emitting.emission import Emission, SpoutEmitter
from tiercel.spark_jobs.reasons import reason_of
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.spout.tally import Tally

log = logging.getLogger(__name__)

_ROOTS_DRAWN = 2_000


class RootSource(Protocol):
    """Root ids for the tuples of spout tasks, as ``RootIds`` draws them."""

    def draw(self, count: int) -> list[int]:
        """``count`` new ones, all different."""
        ...


class Emitted:
    """Tuples that the spout emitted for one batch."""

    def __init__(self) -> None:
        # (root, message id) each; without a root it is not tracked.
        self.tuples: list[tuple[int | None, MsgId | None]] = []
        # Those with a root.
        self.tracked = 0
        # Copies, one per receiving task.
        self.transferred = 0


class TaskCollector:
    """``SpoutCollector`` of one spout task."""

    def __init__(
        self,
        emitter: SpoutEmitter,
        tally: Tally,
        root_ids: RootSource | None,
        drawn_at_once: int = _ROOTS_DRAWN,
    ) -> None:
        """Without ``root_ids`` nothing is tracked; for tuples that are emitted one by one
        ``drawn_at_once`` are drawn together.
        """
        self._emitter = emitter
        self._tally = tally
        self._root_ids = root_ids
        self._drawn_at_once = drawn_at_once
        self._fresh_roots: list[int] = []
        self._emitted = Emitted()

    def __len__(self) -> int:
        """Tuples emitted since ``take``."""
        return len(self._emitted.tuples)

    @property
    def size(self) -> int:
        """Bytes of the tuples emitted since ``take``."""
        return self._emitter.size

    @property
    def tracks(self) -> bool:
        """True if any tuple is tracked."""
        return self._root_ids is not None

    @property
    def tracked(self) -> int:
        """Tracked tuples emitted since ``take``."""
        return self._emitted.tracked

    def follow(self, topology: Topology) -> Emitted:
        """Emit to the tasks of this topology from now on.

        Returns the tuples for other tasks, which go nowhere.
        """
        _, emitted = self.take()
        self._emitter.follow(topology)
        return emitted

    def take(self) -> tuple[Emission, Emitted]:
        """Everything since the last call: encoded, and as it was emitted."""
        emitted, self._emitted = self._emitted, Emitted()
        return self._emitter.take(), emitted

    def emit(
        self,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = "default",
        identity: Identified | None = None,
    ) -> list[int]:
        """``SpoutCollector.emit``."""
        root = self._root(msg_id)
        targets = self._emitter.emit(values, root, stream, identity)
        self._add(root, msg_id, len(targets))
        return [target for target in targets if not is_line(target)]

    def emit_all(
        self,
        rows: Sequence[Sequence[Any]],
        msg_ids: Sequence[MsgId],
        stream: str = "default",
        identities: Sequence[Identified | None] | None = None,
    ) -> None:
        """``SpoutCollector.emit_all``."""
        roots = None if self._root_ids is None else self._root_ids.draw(len(rows))
        transferred = self._emitter.emit_all(rows, roots, stream, identities)
        self._emitted.tuples += zip(roots or repeat(None), msg_ids, strict=False)
        self._emitted.tracked += len(roots or ())
        self._emitted.transferred += transferred

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = "default",
        identity: Identified | None = None,
    ) -> None:
        """``SpoutCollector.emit_direct``."""
        root = self._root(msg_id)
        self._emitter.emit_direct(task, values, root, stream, identity)
        self._add(root, msg_id, 1)

    def report_error(self, error: BaseException | str) -> None:
        """``SpoutCollector.report_error``."""
        message = reason_of(error)
        if self._tally.error(message):
            log.warning("%s", message, extra={"event": "spout_error"})

    def _root(self, msg_id: MsgId | None) -> int | None:
        if msg_id is None or self._root_ids is None:
            return None
        if not self._fresh_roots:
            self._fresh_roots = self._root_ids.draw(self._drawn_at_once)
        return self._fresh_roots.pop()

    def _add(self, root: int | None, msg_id: MsgId | None, transferred: int) -> None:
        self._emitted.tuples.append((root, msg_id))
        self._emitted.tracked += root is not None
        self._emitted.transferred += transferred
