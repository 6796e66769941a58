"""The address of a PostgreSQL, as its clients expect it."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def libpq(url: str) -> dict[str, str]:
    """Return the environment that leads clients to this server."""
    parts = urlsplit(url)
    return {
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": parts.path.strip("/"),
    }
