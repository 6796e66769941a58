"""The key of a tuple, by which it is ordered, and its identity, by which it is known again: a
message that is delivered again has another root, but the same values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from tiercel.acker.inbox.chunk import Chunk
from tiercel.queues.values.python_values import python_value
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.topology.graph import SpoutSpec, Subscription, Topology
from tiercel.spark_jobs.topology.grouping import key_digest
from tiercel.spark_jobs.topology.ordering import ordered_by_of

IDENTITY_BYTES = 8
KEY_BYTES = 16
_SALT_BYTES = 64


class TupleKeys:
    """Keys of the tuples of one bolt, whichever of its streams they come on."""

    def __init__(self, topology: Topology, component: str) -> None:
        spec = topology.bolts[component]
        names = ordered_by_of(spec)
        self._streams = {
            (source.component, source.stream): _StreamKeys(
                topology.spec(source.component).streams[source.stream],
                names,
                f"{source.component}\0{source.stream}",
                _changing_fields(topology, source),
            )
            for source in spec.subscriptions
        }

    def key(self, tup: Tuple) -> bytes | None:
        """Return the key of a tuple; None for a tick, which has no place in any order."""
        stream = self._streams.get((tup.source_component, tup.source_stream))
        return None if stream is None else stream.key(tup.values)

    def identity(self, tup: Tuple) -> bytes:
        """Return what a tuple that has a key is known again by."""
        return self._streams[tup.source_component, tup.source_stream].identity(tup.values)

    def keys_in(self, chunk: Chunk) -> Sequence[bytes | None]:
        """Return the key of each row."""
        stream = self._stream_of(chunk)
        if stream is None:
            return [None] * chunk.values.num_rows
        return stream.keys_in(chunk)

    def identity_in(self, chunk: Chunk, row: int) -> bytes:
        """Return what one row is known again by."""
        stream = self._streams[chunk.route.component, chunk.route.stream]
        return stream.identity([python_value(column, row) for column in chunk.values.columns])

    def _stream_of(self, chunk: Chunk) -> _StreamKeys | None:
        return self._streams.get((chunk.route.component, chunk.route.stream))


class _StreamKeys:
    """Keys of the tuples of one stream."""

    def __init__(
        self, schema: Schema, names: Sequence[str], source: str, changing: AbstractSet[str]
    ) -> None:
        """``source`` tells tuples of two streams apart that have the same values. ``changing``
        fields have others when a tuple comes again.
        """
        self._width = len(schema.names)
        self._positions = [schema.position(name) for name in names]
        self.key: Callable[[Sequence[Any]], bytes] = key_digest(schema, names)
        self._digest = key_digest(schema, [each for each in schema.names if each not in changing])
        self._salt = hashlib.blake2b(source.encode(), digest_size=_SALT_BYTES).digest()

    def identity(self, values: Sequence[Any]) -> bytes:
        digest = self._digest(values)
        return hashlib.blake2b(digest, digest_size=IDENTITY_BYTES, key=self._salt).digest()

    def keys_in(self, chunk: Chunk) -> list[bytes]:
        columns = [
            (position, chunk.values.column(position).to_pylist()) for position in self._positions
        ]
        values: list[Any] = [None] * self._width
        keys = []
        for row in range(chunk.values.num_rows):
            for position, column in columns:
                values[position] = column[row]
            keys.append(self.key(values))
        return keys


def _changing_fields(topology: Topology, source: Subscription) -> AbstractSet[str]:
    spec = topology.spec(source.component)
    if not isinstance(spec, SpoutSpec) or source.stream != DEFAULT_STREAM:
        return frozenset()
    return spec.spout.changing_fields
