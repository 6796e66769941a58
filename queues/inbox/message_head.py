"""The head of an Arrow message, as far as pyarrow does not tell of it."""

from __future__ import annotations

import struct

import pyarrow as pa

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")


def is_compressed(metadata: pa.Buffer) -> bool:
    """Look into the message's head: pyarrow unpacks a body without asking, however
    large it becomes.

    Raises struct.error for bytes that are no head.

    The head is a FlatBuffer. A table in it begins with the distance to its directory, which has the
    table's length, its own and then the places of its fields, 0 for one that is not there. The
    third field of a message is the head of its batch, whose fourth is the compression.
    """
    head = memoryview(metadata)
    (message,) = _U32.unpack_from(head)
    place = _place(head, message, 2)
    (distance,) = _U32.unpack_from(head, place)
    return _place(head, place + distance, 3) != 0


def _place(head: memoryview, table: int, field: int) -> int:
    """Return the offset of a field in a table; 0 if it is not there."""
    (distance,) = _I32.unpack_from(head, table)
    directory = table - distance
    (length,) = _U16.unpack_from(head, directory)
    at = 4 + 2 * field
    if at >= length:
        return 0
    (offset,) = _U16.unpack_from(head, directory + at)
    return table + offset if offset else 0
