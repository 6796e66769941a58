"""A snapshot in two parts: of the bolt's copy, and of the order of its tuples where it has one."""

from __future__ import annotations

import struct

# No snapshot of a copy begins so: that begins with its signature.
_MARK = b"tiercel\0order\0\0\0"
_LENGTH = struct.Struct(">I")
_HEAD_BYTES = len(_MARK) + _LENGTH.size


def joined(order: bytes, copy: bytes) -> bytes:
    """Both parts, each of which may be empty."""
    return _MARK + _LENGTH.pack(len(order)) + order + copy


def parted(snapshot: bytes) -> tuple[bytes, bytes]:
    """The parts of a snapshot, order and copy; one that was not joined is the copy's."""
    if not snapshot.startswith(_MARK) or len(snapshot) < _HEAD_BYTES:
        return b"", snapshot
    (length,) = _LENGTH.unpack_from(snapshot, len(_MARK))
    return snapshot[_HEAD_BYTES : _HEAD_BYTES + length], snapshot[_HEAD_BYTES + length :]
