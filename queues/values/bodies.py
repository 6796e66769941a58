"""From the values of a tuple to the body of a message, which ``formats`` reads back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from typing import Any


def plain_body(value: Any) -> bytes:
    """A string in UTF-8, or bytes as they are; raises TypeError for anything else."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"a body is a string or bytes, not the {type(value).__name__} {value!r:.50}")


def json_body(members: Iterable[tuple[str, Any]]) -> bytes:
    """Return an object with these members, typed.

    Binary is base64, dates and timestamps are ISO 8601, decimals are strings.

    Raises ValueError for NaN and infinity, which JSON does not have, and TypeError for a value that
    no column holds.
    """
    return _ENCODER.encode(dict(members)).encode()


def _member(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date):  # datetime is one too
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"the {type(value).__name__} {value!r:.50} cannot be written as JSON")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_member
)
