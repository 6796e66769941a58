"""Keys of tuples, for the tests of remembered tuples."""

from __future__ import annotations

from hashlib import blake2b


def key_of(name: str) -> bytes:
    """Return a key of 16 bytes, always the same for a name."""
    return blake2b(name.encode(), digest_size=16).digest()


def marks_of(*names: str, record: bytes = bytes(16)) -> dict[bytes, bytes]:
    """Return marks of tuples with these names."""
    return {key_of(name): record + name.encode() for name in names}
