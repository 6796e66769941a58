"""Keys of tuples, as the tests of their memory have them."""

from __future__ import annotations

from hashlib import blake2b


def key_of(name: str) -> bytes:
    """Return a key of 16 bytes, the same each time."""
    return blake2b(name.encode(), digest_size=16).digest()


def marks_of(*names: str, record: bytes = bytes(16)) -> dict[bytes, bytes]:
    """Return marks of tuples that are known by these names."""
    return {key_of(name): record + name.encode() for name in names}
