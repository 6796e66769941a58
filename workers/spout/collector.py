"""The collector of a spout task: it gathers tuples into batches, each with chunks for the inboxes,
and roots with their first ack-vals for the ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import xor
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tiercel.acker.ids import NO_KEY, KeyOrigin, Keys, Said, as_keys, is_line, mix, mix_array
from tiercel.acker.inbox.chunk import Chunk, Lineage, Parcel, Route, Rows, encode_parts, parcels_of
from tiercel.acker.ledger import Ids
from tiercel.acker.metrics.contract import Tally
from tiercel.queues.errors import SchemaError
from tiercel.queues.message.identity import Identified, as_identity
from tiercel.queues.spout import MsgId
from tiercel.spark_jobs.emitting.fold import (
    UNTRACKED,
    first_lineage_of_few,
    first_lineage_of_many,
    join_lineages,
    with_contexts,
    with_keys,
)
from tiercel.spark_jobs.emitting.outputs import (
    Outputs,
    OutputStream,
    TaskOutput,
    copy_numbers,
    copy_numbers_of,
)
from tiercel.spark_jobs.errors import BadValuesError, OutputLimitError
from tiercel.spark_jobs.reasons import reason_of
from tiercel.spark_jobs.topology.graph import Topology, reach

log = logging.getLogger(__name__)

# Up to this many tuples, a Python loop is faster than vectorized calls. At low rates all code is
# cold: a batch of one tuple takes 0.4 ms in the loop and 0.55 ms with numpy and Arrow. At 16 tuples
# the two are equal.
_FEW = 16
_ROOTS_DRAWN = 2_000

# Takes tuples as (root, message id); returns the trace contexts of those to record, by root.
BeginSpans = Callable[[Sequence[tuple[int | None, MsgId | None]]], Mapping[int, bytes]]


class RootSource(Protocol):
    """Source of the root ids of spout tuples, such as ``RootIds``."""

    def draw(self, count: int) -> list[int]:
        """Return ``count`` new ids, all different."""


@dataclass(frozen=True, kw_only=True)
class Emission:
    """A batch: all tuples that the spout has emitted since the previous batch.

    Register the roots first, then append the parcels.
    """

    # (root, message id) of each tuple; a tuple without a root is not tracked.
    tuples: list[tuple[int | None, MsgId | None]]
    # Number of copies, one per receiving task.
    transferred: int
    parcels: list[Parcel]
    roots: list[int]
    # Per root, the XOR of the edges of its copies; 0 if no task receives the tuple.
    ack_vals: list[int]


class TaskCollector:
    """``SpoutCollector`` of one spout task. One thread only.

    A call that raises records nothing. Recorded values have the stream's types, so ``take`` never
    fails because of a value.
    """

    def __init__(  # noqa: PLR0913 - the task, and where its ids come from
        self,
        topology: Topology,
        component: str,
        task_id: int,
        tally: Tally,
        root_ids: RootSource | None,
        *,
        drawn_at_once: int = _ROOTS_DRAWN,
    ) -> None:
        """Without ``root_ids``, no tuple is tracked.

        ``drawn_at_once`` is the number of ids to draw for tuples that are emitted one by one.
        """
        self.task_id = task_id
        # The bolts that a tuple of the spout may lead to, directly or not; and the spout.
        self.leads_to = reach(topology, component)
        self.component = component
        self._tally = tally
        self._root_ids = root_ids
        # True if tuples with a message id are tracked.
        self.tracks = root_ids is not None
        self._drawn_at_once = drawn_at_once
        self._fresh_roots: list[int] = []
        self._outputs = Outputs(topology, task_id)
        self._origin = KeyOrigin(topology.name, component)
        # Tuples since the last ``take``, as in ``Emission``; the number of tracked tuples; the size
        # of all tuples in bytes.
        self.tuples: list[tuple[int | None, MsgId | None]] = []
        self.tracked = 0
        self.size = 0
        self._transferred = 0
        # Batches of tuples that were emitted together, with their lineage.
        self._whole: dict[TaskOutput, list[tuple[pa.RecordBatch, Lineage]]] = {}
        # Number of tuples so far; untracked tuples derive their identity from it.
        self._count = 0
        # Returns the trace contexts of tuples by root; None: no traces.
        self.begin_spans: BeginSpans | None = None

    def follow(self, topology: Topology) -> Emission:
        """Emit to the tasks of this topology from now on; drop and return the tuples that were
        routed by the previous one.
        """
        dropped = self.take()
        self._outputs = Outputs(topology, self.task_id)
        return dropped

    # -- for the spout -----------------------------------------------------------------------------

    def emit(
        self,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = "default",
        identity: Identified | None = None,
    ) -> list[int]:
        """Implement ``SpoutCollector.emit``.

        Raises BadValuesError, UnknownStreamError, DirectStreamError, OutputLimitError for a tuple
        larger than ``max_output_bytes``, and errors of a custom grouping.
        """
        key = None if identity is None else self._key(identity, stream)
        root = self._root(msg_id)
        kept, chosen = self._chosen(values, root, stream)
        self._record(kept, chosen, (root, msg_id), key)
        return [one.target for one in chosen if not is_line(one.target)]

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = "default",
        identity: Identified | None = None,
    ) -> None:
        """Implement ``SpoutCollector.emit_direct``; raises the errors of ``emit``."""
        key = None if identity is None else self._key(identity, stream)
        receiver = self._outputs.direct(task, stream, values)
        root = self._root(msg_id)
        kept, chosen = self._chosen(values, root, stream, receiver)
        self._record(kept, chosen, (root, msg_id), key)

    def emit_all(
        self,
        rows: Sequence[Sequence[Any]],
        msg_ids: Sequence[MsgId],
        stream: str = "default",
        identities: Sequence[Identified | None] | None = None,
    ) -> None:
        """Implement ``SpoutCollector.emit_all``; raises the errors of ``emit``."""
        roots = self._roots(msg_ids)
        tuples = list(zip(roots or repeat(None), msg_ids, strict=False))
        if len(rows) <= _FEW:
            self._emit_few(rows, tuples, stream, identities)
        else:
            self._emit_many(rows, roots, stream, identities)
            self.tuples += tuples
            self.tracked += len(roots or ())

    def report_error(self, error: BaseException | str) -> None:
        """Implement ``SpoutCollector.report_error``."""
        message = reason_of(error)
        if self._tally.error(message):
            log.warning("%s", message, extra={"event": "spout_error"})

    # -- for the task ------------------------------------------------------------------------------

    def take(self) -> Emission:
        """Return the tuples emitted since the last call, encoded."""
        tuples, self.tuples = self.tuples, []
        transferred, self._transferred = self._transferred, 0
        contexts = None if self.begin_spans is None else self.begin_spans(tuples)
        roots = [root for root, _ in tuples if root is not None]
        ack_vals = dict.fromkeys(roots, 0)
        packed: dict[int, list[tuple[bytes, int]]] = {}
        for task_output in self._outputs.task_outputs:
            if not task_output.values and task_output not in self._whole:
                continue
            values, lineage = self._taken(task_output)
            if contexts:
                lineage = with_contexts(lineage, contexts)
            # A task receives one copy of a tuple, so each root occurs once here.
            mine = lineage.roots.tolist()
            before = map(ack_vals.__getitem__, mine)
            ack_vals.update(zip(mine, map(xor, before, lineage.edges.tolist()), strict=True))
            route = Route(
                component=self.component,
                stream=task_output.stream,
                source_task=self.task_id,
                target_task=task_output.target,
            )
            encoded = encode_parts(Chunk(route=route, values=values, lineage=lineage))
            packed.setdefault(task_output.target, []).extend(encoded)
        parcels: list[Parcel] = []
        for target, chunks in packed.items():
            parcels += parcels_of(target, chunks)
        self._outputs.clear()
        self._whole = {}
        self.tracked = self.size = 0
        return Emission(
            tuples=tuples,
            transferred=transferred,
            parcels=parcels,
            roots=roots,
            ack_vals=list(ack_vals.values()),
        )

    def _taken(self, task_output: TaskOutput) -> tuple[pa.RecordBatch, Lineage]:
        """Return the tuples of one stream for one task, with their lineage."""
        parts = self._whole.get(task_output, [])
        if task_output.values:
            made = (
                first_lineage_of_few if len(task_output.values) <= _FEW else first_lineage_of_many
            )
            lineage = made(task_output.rows, task_output.target)
            if task_output.keys:
                lineage = replace(lineage, keys=task_output.spout_keys())
            parts = [*parts, (task_output.schema.batch(task_output.values), lineage)]
        if len(parts) == 1:
            return parts[0]
        return pa.concat_batches([batch for batch, _ in parts]), join_lineages(
            [lineage for _, lineage in parts]
        )

    # -- one or a few tuples -----------------------------------------------------------------------

    def _root(self, msg_id: MsgId | None) -> int | None:
        if msg_id is None or self._root_ids is None:
            return None
        if not self._fresh_roots:
            self._fresh_roots = self._root_ids.draw(self._drawn_at_once)
        return self._fresh_roots.pop()

    def _emit_few(
        self,
        rows: Sequence[Sequence[Any]],
        tuples: Sequence[tuple[int | None, MsgId]],
        stream: str,
        identities: Sequence[Identified | None] | None,
    ) -> None:
        keys: list[bytes | None] = [
            None if identity is None else self._key(identity, stream)
            for identity in identities or [None] * len(rows)
        ]
        # Choose all receivers before recording anything: a choice may raise.
        chosen = [
            self._chosen(row, root, stream) for row, (root, _) in zip(rows, tuples, strict=True)
        ]
        for (kept, task_outputs), one, key in zip(chosen, tuples, keys, strict=True):
            self._record(kept, task_outputs, one, key)

    def _chosen(
        self,
        values: Sequence[Any],
        root: int | None,
        stream: str,
        receiver: TaskOutput | None = None,
    ) -> tuple[tuple[Any, ...], list[TaskOutput]]:
        """Return a snapshot of the values, and their receivers: only ``receiver`` if given."""
        outputs = self._outputs
        output_stream = outputs.streams[stream] if receiver else outputs.for_emit(stream, values)
        kept = output_stream.keep(values)
        size = output_stream.size(kept) if receiver or output_stream.subscribers else 0
        try:
            output_stream.schema.check(kept)
        except SchemaError as error:
            raise self._bad_values(stream, error) from error
        if size > outputs.limit:
            raise OutputLimitError.of(self.component, outputs.limit)
        self._count += 1
        self.size += size
        only = receiver or output_stream.only
        if only is not None:
            return kept, [only]
        identity = mix(self._count if root is None else root) if output_stream.by_identity else 0
        return kept, output_stream.chosen(kept, identity)

    def _record(
        self,
        values: tuple[Any, ...],
        chosen: Sequence[TaskOutput],
        one: tuple[int | None, MsgId | None],
        key: bytes | None,
    ) -> None:
        root, _ = one
        for task_output in chosen:
            task_output.values.append(values)
            task_output.rows.append(UNTRACKED if root is None else root)
        if key is not None:
            for task_output, number in zip(chosen, copy_numbers(chosen), strict=True):
                task_output.add_key(key, number)
        self.tuples.append(one)
        self.tracked += root is not None
        self._transferred += len(chosen)

    def _key(self, identity: Identified, stream: str) -> bytes:
        id_, *said = as_identity(identity)
        return self._origin.key(id_, Said(*said), stream)

    def _bad_values(self, stream: str, error: SchemaError) -> BadValuesError:
        return BadValuesError(f"{self.component!r}, stream {stream!r}: {error}")

    # -- many tuples, vectorized with Arrow and numpy where possible -------------------------------

    def _roots(self, msg_ids: Sequence[MsgId]) -> list[int] | None:
        return None if self._root_ids is None else self._root_ids.draw(len(msg_ids))

    def _emit_many(
        self,
        rows: Sequence[Sequence[Any]],
        roots: Sequence[int] | None,
        stream: str,
        identities: Sequence[Identified | None] | None,
    ) -> None:
        keys = None if identities is None else self._keys(identities, stream)
        output_stream = self._outputs.find(stream)
        batch = self._batch(output_stream, stream, rows)
        count = batch.num_rows
        given = (
            np.full(count, UNTRACKED, np.uint64) if roots is None else np.array(roots, np.uint64)
        )
        numbers = np.arange(self._count + 1, self._count + count + 1, dtype=np.uint64)
        mixed = mix_array(numbers if roots is None else given)
        # Choose all receivers before recording anything: a choice may raise.
        chosen = _chosen_rows(output_stream, batch, mixed, keyed=keys is not None)
        for task_output, mine, copies in chosen:
            every = len(mine) == count
            part = batch if every else batch.take(pa.array(mine))
            lineage = first_lineage_of_many(given if every else given[mine], task_output.target)
            if keys is not None:
                lineage = with_keys(lineage, keys[mine], copies, task_output.bolt)
            self._whole.setdefault(task_output, []).append((part, lineage))
            self._transferred += len(mine)
        self._count += count

    def _keys(self, identities: Sequence[Identified | None], stream: str) -> Keys | None:
        """Return the keys of many tuples; None if no tuple has a key."""
        keys = [NO_KEY if one is None else self._key(one, stream) for one in identities]
        return as_keys(keys) if any(one is not NO_KEY for one in keys) else None

    def _batch(
        self, output_stream: OutputStream, stream: str, rows: Sequence[Sequence[Any]]
    ) -> pa.RecordBatch:
        if any(len(row) != output_stream.width for row in rows):
            for row in rows:
                self._outputs.for_emit(stream, row)  # raises for the row of the wrong width
        try:
            batch = output_stream.schema.batch(rows)
        except SchemaError as error:
            raise self._bad_values(stream, error) from error
        if output_stream.subscribers:
            limit = self._outputs.limit
            if batch.nbytes > limit and any(output_stream.size(row) > limit for row in rows):
                raise OutputLimitError.of(self.component, limit)
            self.size += batch.nbytes
        return batch


def _chosen_rows(
    output_stream: OutputStream, batch: pa.RecordBatch, identities: Ids, *, keyed: bool
) -> list[tuple[TaskOutput, Rows, Ids | None]]:
    """Return the rows of each receiver and, if ``keyed``, the copy number of each row."""
    chosen: list[tuple[TaskOutput, Rows, Ids | None]] = []
    for choose, (_, made) in zip(
        output_stream.batch_choosers, output_stream.subscribers, strict=True
    ):
        tasks = choose(batch, identities)
        numbers = copy_numbers_of(tasks) if keyed else {}
        chosen += [
            (made[task], mine, numbers.get(task)) for task, mine in tasks.items() if len(mine)
        ]
    return chosen
