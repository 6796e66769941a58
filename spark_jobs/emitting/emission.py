"""The spout's side of emitting: tuples become chunks for inboxes, and roots with their first
ack-vals for the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import xor
from typing import Any

import numpy as np
import pyarrow as pa

from tiercel.acker.ids import edge, edges, mix, mix_array, seed, seed_array
from tiercel.acker.ledger import Ids
from tiercel.queues.errors import SchemaError
from tiercel.queues.inbox.chunk import Chunk, Lineage, Route, Rows, encode
from tiercel.queues.inbox.records import Parcel
from tiercel.spark_jobs.emitting.outputs import Outputs, OutputStream, TaskOutput
from tiercel.spark_jobs.errors import BadValuesError
from tiercel.spark_jobs.topology.graph import Topology

_UNTRACKED = 0
_LOW = (1 << 32) - 1
# Up to so many tuples are faster one by one. At low rates all code is cold: the calls of numpy and
# Arrow that many tuples share took 0.35 ms to record one and 0.3 ms for its ids, a loop over one
# takes 0.1 ms for both. At 16 they are equal.
_FEW = 16
# Tuples that were emitted together, and the root of each.
_Whole = tuple[pa.RecordBatch, Ids]


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
    """Routes the tuples of one spout task. One thread only.

    A tuple is emitted once, whatever becomes of it, so that turns may choose here, and a
    shuffle is as even as it can be: the upper half of an emission's identity is its turn, the
    lower half is well mixed.
    """

    def __init__(self, topology: Topology, component: str, task_id: int) -> None:
        self.task_id = task_id
        self._component = component
        self._outputs = Outputs(topology, task_id)
        self._roots: list[int] = []
        self._whole: dict[TaskOutput, list[_Whole]] = {}
        # By stream: one turn for all would send every second tuple to one task if two
        # streams alternate.
        self._turns = dict.fromkeys(self._outputs.streams, mix(task_id) & _LOW)

    def follow(self, topology: Topology) -> None:
        """Route to the tasks of this topology from now on. Only when everything was taken."""
        self._outputs = Outputs(topology, self.task_id)

    def emit(self, values: Sequence[Any], root: int | None, stream: str) -> list[int]:
        """Record one tuple; returns the ids of the tasks that receive it. A root is emitted once.

        Raises BadValuesError, UnknownStreamError, DirectStreamError, and what a custom grouping
        raises; then nothing is recorded. What is recorded has the stream's types, so ``take``
        cannot fail for a value.
        """
        kept, chosen = self._chosen(values, root, stream)
        self._record(chosen, kept, root)
        return [task_output.target for task_output in chosen]

    def emit_direct(self, task: int, values: Sequence[Any], root: int | None, stream: str) -> None:
        """Record one tuple for one task, on a direct stream; else as ``emit``."""
        task_output = self._outputs.direct(task, stream, values)
        self._record(
            [task_output], self._checked(self._outputs.streams[stream], stream, values), root
        )

    def emit_all(
        self, rows: Sequence[Sequence[Any]], roots: Sequence[int] | None, stream: str
    ) -> int:
        """Record many tuples of one stream, each as ``emit`` would.

        Returns how many copies there are of them.

        Many without a loop in Python for what Arrow and numpy can do. Raises what ``emit`` raises,
        and nothing is recorded then.
        """
        if len(rows) <= _FEW:
            return self._emit_few(rows, roots, stream)
        output_stream = self._outputs.find(stream)
        batch = self._batch(output_stream, stream, rows)
        count = batch.num_rows
        turns = np.arange(self._turns[stream] + 1, self._turns[stream] + count + 1, dtype=np.uint64)
        given = (
            np.full(count, _UNTRACKED, np.uint64) if roots is None else np.array(roots, np.uint64)
        )
        identities = turns << np.uint64(32) | mix_array(
            turns if roots is None else given
        ) & np.uint64(_LOW)
        # All choices first: one of them may raise.
        chosen: list[tuple[TaskOutput, Rows]] = []
        for choose, (_, made) in zip(
            output_stream.batch_choosers, output_stream.subscribers, strict=True
        ):
            chosen += [
                (made[task], mine) for task, mine in choose(batch, identities).items() if len(mine)
            ]
        for task_output, mine in chosen:
            whole = (
                (batch, given) if len(mine) == count else (batch.take(pa.array(mine)), given[mine])
            )
            self._whole.setdefault(task_output, []).append(whole)
        self._turns[stream] += count
        self._roots += roots or ()
        return sum(len(mine) for _, mine in chosen)

    def take(self) -> Emission:
        """Everything since the last call."""
        roots = self._roots
        ack_vals = dict.fromkeys(roots, 0)
        packed: dict[int, tuple[list[bytes], list[int]]] = {}
        for task_output in self._outputs.task_outputs:
            if not task_output.values and task_output not in self._whole:
                continue
            values, lineage = self._taken(task_output)
            # One task has one copy of a tuple, so that each root is met once here.
            mine = lineage.roots.tolist()
            before = [ack_vals[root] for root in mine]
            ack_vals.update(zip(mine, map(xor, before, lineage.edges.tolist()), strict=True))
            chunks, counts = packed.setdefault(task_output.target, ([], []))
            chunks.append(self._encode(task_output, values, lineage))
            counts.append(values.num_rows)
        self._outputs.clear()
        self._roots = []
        self._whole = {}
        parcels = [
            Parcel(target=target, chunks=each, tuples=counts)
            for target, (each, counts) in packed.items()
        ]
        return Emission(parcels=parcels, roots=roots, ack_vals=list(ack_vals.values()))

    def _chosen(
        self, values: Sequence[Any], root: int | None, stream: str
    ) -> tuple[tuple[Any, ...], list[TaskOutput]]:
        """Take a turn: the values as they are now, and who receives them."""
        output_stream = self._outputs.for_emit(stream, values)
        kept = self._checked(output_stream, stream, values)
        turn = self._turns[stream] = self._turns[stream] + 1
        identity = (turn & _LOW) << 32 | mix(turn if root is None else root) & _LOW
        return kept, [
            made[task]
            for choose, made in output_stream.subscribers
            for task in choose(kept, identity)
        ]

    def _emit_few(
        self, rows: Sequence[Sequence[Any]], roots: Sequence[int] | None, stream: str
    ) -> int:
        given = [None] * len(rows) if roots is None else roots
        # All choices first: one of them may raise.
        chosen = [self._chosen(row, root, stream) for row, root in zip(rows, given, strict=True)]
        for (kept, task_output), root in zip(chosen, given, strict=True):
            self._record(task_output, kept, root)
        return sum([len(task_output) for _, task_output in chosen])

    def _taken(self, task_output: TaskOutput) -> tuple[pa.RecordBatch, Lineage]:
        """The tuples for one task on one stream."""
        parts = self._whole.get(task_output, [])
        if not parts and len(task_output.values) <= _FEW:
            return task_output.schema.batch(task_output.values), _lineage_of_few(
                task_output.rows, task_output.target
            )
        if task_output.values:
            parts.append(
                (
                    task_output.schema.batch(task_output.values),
                    np.array(task_output.rows, np.uint64),
                )
            )
        if len(parts) == 1:
            values, given = parts[0]
        else:
            values = pa.concat_batches([batch for batch, _ in parts])
            given = np.concatenate([ids for _, ids in parts])
        return values, _lineage_of_many(given, task_output.target)

    def _batch(
        self, output_stream: OutputStream, stream: str, rows: Sequence[Sequence[Any]]
    ) -> pa.RecordBatch:
        if any(len(row) != output_stream.width for row in rows):
            for row in rows:
                self._outputs.for_emit(stream, row)  # says which one it is
        try:
            return output_stream.schema.batch(rows)
        except SchemaError as error:
            raise BadValuesError(f"{self._component!r}, stream {stream!r}: {error}") from error

    def _checked(
        self, output_stream: OutputStream, stream: str, values: Sequence[Any]
    ) -> tuple[Any, ...]:
        try:
            output_stream.schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"{self._component!r}, stream {stream!r}: {error}") from error
        return output_stream.keep(values)

    def _record(
        self, chosen: Sequence[TaskOutput], values: tuple[Any, ...], root: int | None
    ) -> None:
        for task_output in chosen:
            task_output.values.append(values)
            task_output.rows.append(_UNTRACKED if root is None else root)
        if root is not None:
            self._roots.append(root)

    def _encode(self, task_output: TaskOutput, values: pa.RecordBatch, lineage: Lineage) -> bytes:
        route = Route(
            component=self._component,
            stream=task_output.stream,
            source_task=self.task_id,
            target_task=task_output.target,
        )
        return encode(Chunk(route=route, values=values, lineage=lineage))


def _lineage_of_few(given: Sequence[int], target: int) -> Lineage:
    """The first edges of the trees: derived from the root and the target, so that two copies
    of a tuple differ.
    """
    roots = [root for root in given if root != _UNTRACKED]
    return Lineage(
        offsets=np.array([0, *accumulate([root != _UNTRACKED for root in given])], np.int32),
        roots=np.array(roots, np.uint64),
        edges=np.array([edge(seed(root, 0), 0, target) for root in roots], np.uint64),
    )


def _lineage_of_many(given: Ids, target: int) -> Lineage:
    """As ``_lineage_of_few``."""
    tracked = given != _UNTRACKED
    roots = given[tracked]
    count = len(roots)
    seeds = seed_array(roots, np.zeros(count, np.uint64))
    targets = np.full(count, target, np.uint64)
    return Lineage(
        offsets=np.concatenate([[0], np.cumsum(tracked)]).astype(np.int32),
        roots=roots,
        edges=edges(seeds, np.zeros(count, np.uint64), targets),
    )
