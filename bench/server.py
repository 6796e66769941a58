"""The one server that the measurements of a single part need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from compose import EmbeddedRedis


@contextmanager
def redis_server(url: str | None) -> Iterator[str]:
    """The server at ``url``, whose database may be emptied, or a private one; yields where it is."""
    if url is not None:
        yield url
        return
    with EmbeddedRedis() as server:
        yield server.url
