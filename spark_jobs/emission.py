"""The spout's side of emitting: tuples become chunks for the relay, and roots with their first ack-vals for the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acker.ids import edges, mix, seed_array
from queues import Entry
from queues.chunk import Chunk, Lineage, Route, encode
from queues.errors import SchemaError
from spark_jobs.errors import BadValuesError
from spark_jobs.levels import Plan
from spark_jobs.outputs import Outgoing, Outlet, Outputs

_UNTRACKED = 0


@dataclass(frozen=True, kw_only=True)
class Emission:
    """What a spout task emitted since the last time. Register the roots first, then append the entries."""

    entries: list[Entry]
    roots: list[int]
    ack_vals: list[int]
    """XOR of the edges of each root's copies; 0 where nobody receives the tuple."""


class SpoutEmitter:
    """Routes the tuples of one spout task. One thread only."""

    def __init__(self, plan: Plan, component: str, task_id: int) -> None:
        self.task_id = task_id
        self._plan, self._component = plan, component
        self._outputs = Outputs(plan.topology, task_id)
        self._roots: list[int] = []
        self._count = 0

    def emit(self, values: Sequence[Any], root: int | None, stream: str) -> list[int]:
        """Record one tuple; returns the ids of the tasks that receive it. A root is emitted once.

        Raises BadValuesError, UnknownStreamError, DirectStreamError, and what a custom grouping raises; then nothing is
        recorded. What is recorded has the stream's types, so ``take`` cannot fail for a value.
        """
        outlet = self._outputs.outlet(stream, values)
        kept = self._checked(outlet, stream, values)
        self._count += 1
        identity = mix(self._count if root is None else root)
        chosen = [made[task] for choose, made in outlet.subscribers for task in choose(kept, identity)]
        self._record(chosen, kept, root)
        return [outgoing.target for outgoing in chosen]

    def emit_direct(self, task: int, values: Sequence[Any], root: int | None, stream: str) -> None:
        """Record one tuple for one task, on a direct stream; else as ``emit``."""
        outgoing = self._outputs.direct(task, stream, values)
        self._record([outgoing], self._checked(self._outputs.outlets[stream], stream, values), root)

    def take(self) -> Emission:
        """Everything since the last call."""
        ack_vals = dict.fromkeys(self._roots, 0)
        entries = []
        for outgoing in self._outputs.outgoing:
            if outgoing.values:
                lineage = _spout_lineage(outgoing)
                for root, edge in zip(lineage.roots.tolist(), lineage.edges.tolist(), strict=True):
                    ack_vals[root] ^= edge
                entries.append(Entry(lane=self._plan.relay_lane(outgoing.target), payload=self._encode(outgoing, lineage)))
        self._outputs.clear()
        self._roots = []
        return Emission(entries=entries, roots=list(ack_vals), ack_vals=list(ack_vals.values()))

    def _checked(self, outlet: Outlet, stream: str, values: Sequence[Any]) -> tuple[Any, ...]:
        try:
            outlet.schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"{self._component!r}, stream {stream!r}: {error}") from error
        return outlet.keep(values)

    def _record(self, chosen: Sequence[Outgoing], values: tuple[Any, ...], root: int | None) -> None:
        for outgoing in chosen:
            outgoing.values.append(values)
            outgoing.rows.append(_UNTRACKED if root is None else root)
        if root is not None:
            self._roots.append(root)

    def _encode(self, outgoing: Outgoing, lineage: Lineage) -> bytes:
        route = Route(component=self._component, stream=outgoing.stream, source_task=self.task_id, target_task=outgoing.target)
        return encode(Chunk(route=route, values=outgoing.schema.batch(outgoing.values), lineage=lineage))


def _spout_lineage(outgoing: Outgoing) -> Lineage:
    """The first edges of the trees: derived from the root and the target, so that two copies of a tuple differ."""
    given = np.array(outgoing.rows, np.uint64)
    tracked = given != _UNTRACKED
    roots = given[tracked]
    count = len(roots)
    seeds = seed_array(roots, np.zeros(count, np.uint64))
    targets = np.full(count, outgoing.target, np.uint64)
    return Lineage(
        offsets=np.concatenate([[0], np.cumsum(tracked)]).astype(np.int32),
        roots=roots,
        edges=edges(seeds, np.zeros(count, np.uint64), targets),
    )
