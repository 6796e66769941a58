"""The beginning of a body, for people who look at messages. Pure."""

from __future__ import annotations

# Of a body that is looked at, at most.
BODY_BYTES = 64 * 1024
# Of a body in a table.
_BYTES = 200


def preview_of(body: bytes) -> str:
    """Return the first 200 bytes of a body as text, with blanks for unprintable characters."""
    text = body[:_BYTES].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else " " for character in text)
