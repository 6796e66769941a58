"""A chunk: the tuples that one task emits to one other task on one stream, as one Arrow record batch with their ids.

On the wire (relay entries, Spark shuffle rows) it is an Arrow IPC stream of one batch: the stream's typed columns, then
``__roots`` and ``__edges`` (list<uint64>, parallel), with the route in the schema's metadata. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_ROOTS = "__roots"
_EDGES = "__edges"
_ROUTE = b"tiercel"


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Where a chunk comes from and goes to; task ids are unique in the topology."""

    component: str
    stream: str
    source_task: int
    target_task: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """The trees that n tuples belong to: tuple i is on ``edges[offsets[i]:offsets[i+1]]`` in the trees ``roots`` of that slice.

    A tuple without roots is not tracked. A root may stand twice in one slice: the edges of one root XOR together.
    """

    offsets: NDArray[np.int32]
    """Shape (n + 1,)."""
    roots: NDArray[np.uint64]
    edges: NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """n tuples on one route."""

    route: Route
    values: pa.RecordBatch
    """The stream's typed columns, n rows."""
    lineage: Lineage


def encode(chunk: Chunk) -> bytes:
    """The chunk as an Arrow IPC stream."""
    route, lineage = chunk.route, chunk.lineage
    names = f"{route.source_task}\n{route.target_task}\n{route.component}\n{route.stream}"
    offsets = pa.array(lineage.offsets, pa.int32())
    ids = [pa.ListArray.from_arrays(offsets, pa.array(array, pa.uint64())) for array in (lineage.roots, lineage.edges)]
    schema = pa.schema(
        [*chunk.values.schema, pa.field(_ROOTS, ids[0].type), pa.field(_EDGES, ids[1].type)],
        metadata={_ROUTE: names.encode()},
    )
    batch = pa.RecordBatch.from_arrays([*chunk.values.columns, *ids], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode(payload: bytes) -> Chunk:
    """The chunk in an Arrow IPC stream written by ``encode``; raises ValueError for anything else."""
    try:
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
            source, target, component, stream = reader.schema.metadata[_ROUTE].decode().split("\n")
    except (pa.ArrowInvalid, KeyError, TypeError, StopIteration) as error:
        raise ValueError(f"not a chunk of tuples: {error}") from error
    roots = batch.column(batch.num_columns - 2)
    edges = batch.column(batch.num_columns - 1)
    lineage = Lineage(
        offsets=roots.offsets.to_numpy(),
        roots=roots.values.to_numpy(zero_copy_only=True),
        edges=edges.values.to_numpy(zero_copy_only=True),
    )
    columns = range(batch.num_columns - 2)
    return Chunk(
        route=Route(component=component, stream=stream, source_task=int(source), target_task=int(target)),
        values=pa.RecordBatch.from_arrays(
            [batch.column(i) for i in columns], schema=pa.schema([batch.schema.field(i) for i in columns])
        ),
        lineage=lineage,
    )


def roots_in(payloads: Iterable[bytes]) -> list[int]:
    """The roots of all trees that these encoded chunks have tuples of, each once, ascending."""
    roots = [decode(payload).lineage.roots for payload in payloads]
    found: list[int] = np.unique(np.concatenate(roots)).tolist() if roots else []
    return found
