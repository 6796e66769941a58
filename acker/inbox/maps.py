"""Maps of texts in a chunk from any writer.

Arrow ends the process where it meets a map with a key that is null, before it can be asked if there
is one. In a message a map has the buffers of a list of pairs, so it is read as one, and looked at,
before it becomes a map.
"""

from __future__ import annotations

import pyarrow as pa

from tiercel.acker.errors import BadChunkError

# Texts by name.
TEXTS = pa.map_(pa.string(), pa.string())
_PAIR = pa.struct([TEXTS.key_field, TEXTS.item_field])
_PAIRS = pa.list_(pa.field("entries", _PAIR, nullable=False))


def maps_of(schema: pa.Schema) -> list[int]:
    """Return which columns are maps of texts."""
    return [column for column, field in enumerate(schema) if field.type == TEXTS]


def with_pairs(schema: pa.Schema, maps: list[int]) -> pa.Schema:
    """Return the schema to read a message by that has maps in these columns."""
    for column in maps:
        schema = schema.set(column, schema.field(column).with_type(_PAIRS))
    return schema


def as_map(pairs: pa.Array) -> pa.Array:
    """Return the map whose pairs these are, validated as they are; raises BadChunkError."""
    entries = pairs.values
    if entries.null_count or entries.field(0).null_count:
        raise BadChunkError("a map in it has a key that is null")
    return pa.Array.from_buffers(TEXTS, len(pairs), pairs.buffers()[:2], children=[entries])
