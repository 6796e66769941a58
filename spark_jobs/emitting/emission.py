"""The spout's side of emitting: tuples become chunks for inboxes, and roots with their first
ack-vals for the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import xor
from typing import Any

import numpy as np
import pyarrow as pa

from tiercel.acker.ids import NO_KEY, KeyOrigin, Keys, Said, as_keys, mix, mix_array
from tiercel.acker.inbox.chunk import Chunk, Lineage, Parcel, Route, Rows, encode_parts, parcels_of
from tiercel.acker.ledger import Ids
from tiercel.queues.errors import SchemaError
from tiercel.queues.message.identity import Identified, as_identity
from tiercel.spark_jobs.emitting.fold import (
    UNTRACKED,
    first_lineage_of_few,
    first_lineage_of_many,
    join_lineages,
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
from tiercel.spark_jobs.topology.graph import Topology

# Up to this many tuples are faster one by one. At low rates all code is cold: the calls of numpy
# and Arrow that many tuples share took 0.35 ms to record one and 0.3 ms for its ids, a loop over
# one takes 0.1 ms for both. At 16 they are equal.
_FEW = 16
# Tuples that were emitted together, and their lineage.
_Whole = tuple[pa.RecordBatch, Lineage]


@dataclass(frozen=True, kw_only=True)
class Emission:
    """Tuples that a spout task emitted since the last time.

    Register the roots first, then append the parcels.
    """

    parcels: list[Parcel]
    roots: list[int]
    # XOR of the edges of each root's copies; 0 where no task receives the tuple.
    ack_vals: list[int]


class SpoutEmitter:
    """Routes the tuples of one spout task. One thread only."""

    def __init__(self, topology: Topology, component: str, task_id: int) -> None:
        self.task_id = task_id
        self._component = component
        self._outputs = Outputs(topology, task_id)
        self._origin = KeyOrigin(topology.name, component)
        self._roots: list[int] = []
        # Bytes of the tuples since the last time.
        self.size = 0
        self._whole: dict[TaskOutput, list[_Whole]] = {}
        # Number of tuples so far: it makes the identity of untracked tuples.
        self._count = 0

    def follow(self, topology: Topology) -> None:
        """Route to the tasks of this topology from now on. Only when everything was taken."""
        self._outputs = Outputs(topology, self.task_id)

    def emit(
        self,
        values: Sequence[Any],
        root: int | None,
        stream: str,
        identity: Identified | None = None,
    ) -> list[int]:
        """Record one tuple; returns the ids of the tasks and lines that receive it. A root is
        emitted once.

        Raises BadValuesError, UnknownStreamError, DirectStreamError, OutputLimitError for a tuple
        larger than ``max_output_bytes``, and what a custom grouping raises; then nothing is
        recorded. Recorded values have the stream's types, so ``take`` cannot fail for a value.
        """
        key = None if identity is None else self._key(identity, stream)
        kept, chosen = self._chosen(values, root, stream)
        self._record(chosen, kept, root, key)
        return [task_output.target for task_output in chosen]

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        root: int | None,
        stream: str,
        identity: Identified | None = None,
    ) -> None:
        """Record one tuple for one task, on a direct stream; else as ``emit``."""
        key = None if identity is None else self._key(identity, stream)
        task_output = self._outputs.direct(task, stream, values)
        kept = self._checked(self._outputs.streams[stream], stream, values)
        self.size += self._measured(self._outputs.streams[stream], kept)
        self._record([task_output], kept, root, key)

    def emit_all(
        self,
        rows: Sequence[Sequence[Any]],
        roots: Sequence[int] | None,
        stream: str,
        identities: Sequence[Identified | None] | None = None,
    ) -> int:
        """Record many tuples of one stream, each as ``emit`` would.

        Returns how many copies there are of them.

        Many without a loop in Python for what Arrow and numpy can do. Raises what ``emit`` raises,
        and nothing is recorded then.
        """
        if len(rows) <= _FEW:
            return self._emit_few(rows, roots, stream, identities)
        keys = None if identities is None else self._keys(identities, stream)
        output_stream = self._outputs.find(stream)
        batch = self._batch(output_stream, stream, rows)
        count = batch.num_rows
        given = (
            np.full(count, UNTRACKED, np.uint64) if roots is None else np.array(roots, np.uint64)
        )
        numbers = np.arange(self._count + 1, self._count + count + 1, dtype=np.uint64)
        mixed = mix_array(numbers if roots is None else given)
        # All choices first: one of them may raise.
        chosen = _chosen_rows(output_stream, batch, mixed, keyed=keys is not None)
        for task_output, mine, copies in chosen:
            every = len(mine) == count
            part = batch if every else batch.take(pa.array(mine))
            lineage = first_lineage_of_many(given if every else given[mine], task_output.target)
            if keys is not None:
                lineage = with_keys(lineage, keys[mine], copies, task_output.bolt)
            self._whole.setdefault(task_output, []).append((part, lineage))
        self._count += count
        self._roots += roots or ()
        return sum(len(mine) for _, mine, _ in chosen)

    def take(self) -> Emission:
        """Everything since the last call."""
        roots = self._roots
        ack_vals = dict.fromkeys(roots, 0)
        packed: dict[int, list[tuple[bytes, int]]] = {}
        for task_output in self._outputs.task_outputs:
            if not task_output.values and task_output not in self._whole:
                continue
            values, lineage = self._taken(task_output)
            # One task has one copy of a tuple, so that each root is met once here.
            mine = lineage.roots.tolist()
            before = map(ack_vals.__getitem__, mine)
            ack_vals.update(zip(mine, map(xor, before, lineage.edges.tolist()), strict=True))
            route = Route(
                component=self._component,
                stream=task_output.stream,
                source_task=self.task_id,
                target_task=task_output.target,
            )
            encoded = encode_parts(Chunk(route=route, values=values, lineage=lineage))
            packed.setdefault(task_output.target, []).extend(encoded)
        self._outputs.clear()
        self._roots = []
        self.size = 0
        self._whole = {}
        parcels: list[Parcel] = []
        for target, chunks in packed.items():
            parcels += parcels_of(target, chunks)
        return Emission(parcels=parcels, roots=roots, ack_vals=list(ack_vals.values()))

    def _chosen(
        self, values: Sequence[Any], root: int | None, stream: str
    ) -> tuple[tuple[Any, ...], list[TaskOutput]]:
        """Return the values as they are now, and who receives them."""
        output_stream = self._outputs.for_emit(stream, values)
        kept = self._checked(output_stream, stream, values)
        self._count += 1
        identity = mix(self._count if root is None else root)
        chosen: list[TaskOutput] = []
        for choose, made in output_stream.subscribers:
            chosen += map(made.__getitem__, choose(kept, identity))
        if chosen:
            self.size += self._measured(output_stream, kept)
        return kept, chosen

    def _emit_few(
        self,
        rows: Sequence[Sequence[Any]],
        roots: Sequence[int] | None,
        stream: str,
        identities: Sequence[Identified | None] | None,
    ) -> int:
        given = [None] * len(rows) if roots is None else roots
        keys: list[bytes | None] = [
            None if identity is None else self._key(identity, stream)
            for identity in identities or [None] * len(rows)
        ]
        # All choices first: one of them may raise.
        chosen = [self._chosen(row, root, stream) for row, root in zip(rows, given, strict=True)]
        for (kept, task_outputs), root, key in zip(chosen, given, keys, strict=True):
            self._record(task_outputs, kept, root, key)
        return sum([len(task_outputs) for _, task_outputs in chosen])

    def _key(self, identity: Identified, stream: str) -> bytes:
        id_, *said = as_identity(identity)
        return self._origin.key(id_, Said(*said), stream)

    def _keys(self, identities: Sequence[Identified | None], stream: str) -> Keys | None:
        """The keys of many tuples; None if none has one."""
        keys = [NO_KEY if one is None else self._key(one, stream) for one in identities]
        return as_keys(keys) if any(one is not NO_KEY for one in keys) else None

    def _taken(self, task_output: TaskOutput) -> tuple[pa.RecordBatch, Lineage]:
        """The tuples for one task on one stream."""
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

    def _batch(
        self, output_stream: OutputStream, stream: str, rows: Sequence[Sequence[Any]]
    ) -> pa.RecordBatch:
        if any(len(row) != output_stream.width for row in rows):
            for row in rows:
                self._outputs.for_emit(stream, row)  # says which one it is
        try:
            batch = output_stream.schema.batch(rows)
        except SchemaError as error:
            raise BadValuesError(f"{self._component!r}, stream {stream!r}: {error}") from error
        if output_stream.subscribers:
            if batch.nbytes > self._outputs.limit:
                for row in rows:
                    self._measured(output_stream, row)
            self.size += batch.nbytes
        return batch

    def _checked(
        self, output_stream: OutputStream, stream: str, values: Sequence[Any]
    ) -> tuple[Any, ...]:
        try:
            output_stream.schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"{self._component!r}, stream {stream!r}: {error}") from error
        return output_stream.keep(values)

    def _measured(self, output_stream: OutputStream, values: Sequence[Any]) -> int:
        """Return the size of one tuple; raises OutputLimitError."""
        size = output_stream.size(values)
        if size > self._outputs.limit:
            raise OutputLimitError.of(self._component, self._outputs.limit)
        return size

    def _record(
        self,
        chosen: Sequence[TaskOutput],
        values: tuple[Any, ...],
        root: int | None,
        key: bytes | None,
    ) -> None:
        for task_output in chosen:
            task_output.values.append(values)
            task_output.rows.append(UNTRACKED if root is None else root)
        if root is not None:
            self._roots.append(root)
        if key is not None:
            for task_output, number in zip(chosen, copy_numbers(chosen), strict=True):
                task_output.add_key(key, number)


def _chosen_rows(
    output_stream: OutputStream, batch: pa.RecordBatch, identities: Ids, *, keyed: bool
) -> list[tuple[TaskOutput, Rows, Ids | None]]:
    """Return who receives which rows; with ``keyed``, the numbers of the copies of a row too."""
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
