"""JSON from strangers: read in linear time and within stated memory, or refused in one line."""

from __future__ import annotations

import json
from typing import Any

from tiercel.queues.errors import BadBodyError

# Bound on the values in one body: not their text takes memory, but their objects.
MAX_VALUES = 1_000_000
# Each value is one character at least, and but for the last is followed by a comma.
_SURELY_FEW_BYTES = 2 * MAX_VALUES
_WINDOW_BYTES = 64 * 1024
# Of a number of 15 digits and a point the float has the same digits.
_SURELY_EXACT = 16
_NAME_CHARACTERS = 50
_SAID_CHARACTERS = 200


class WrittenFloat(float):
    """A number that a float may not hold as it was written: it has too many digits."""

    __slots__ = ("text",)
    text: str


def read_json(body: bytes, *, exact: bool = False) -> Any:
    """Return the value of a body in UTF-8; raises BadBodyError, and nothing else.

    With ``exact`` a number of many digits is a ``WrittenFloat``, for a decimal to be made of.

    Stricter than ``json``: a name that stands twice in one object, NaN and infinity are refused. It
    takes time in proportion to any body. A body of 16 MiB takes less than 384 MiB beside itself,
    because one of more than MAX_VALUES values is refused before it is read.
    """
    _refuse_too_many_values(body)
    try:
        return (_parse_exactly if exact else _parse)(body.decode())
    except UnicodeDecodeError as error:
        raise BadBodyError(
            f"the body is not JSON in UTF-8: byte {error.start} is 0x{body[error.start]:02x}"
        ) from error
    except RecursionError as error:
        raise BadBodyError("the body is not usable JSON: it is nested too deeply") from error
    except ValueError as error:
        raise BadBodyError(f"the body is not JSON: {str(error)[:_SAID_CHARACTERS]}") from error


def _refuse_too_many_values(body: bytes) -> None:
    # Marks within strings are no values, but looking for the ends of strings is seldom worth it.
    if len(body) <= _SURELY_FEW_BYTES or _marks(body) <= MAX_VALUES:
        return
    if (count := _marks_outside_strings(body)) > MAX_VALUES:
        raise BadBodyError(
            f"the body has up to {count:,} JSON values, the limit is {MAX_VALUES:,}; send "
            "fewer per message"
        )


def _marks(text: bytes) -> int:
    """Count the marks that values follow: each value but the first follows one of these."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _marks_outside_strings(body: bytes) -> int:
    # Without escapes each quote begins or ends a string. In windows, for the pieces of all of it
    # could be gigabytes.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    count = 0
    inside = 0
    for at in range(0, len(plain), _WINDOW_BYTES):
        pieces = plain[at : at + _WINDOW_BYTES].split(b'"')
        count += _marks(b"".join(pieces[inside::2]))
        inside = (inside + len(pieces) - 1) % 2
    return count


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        for name, _ in pairs:
            if name not in members:
                raise ValueError(f"the name {name[:_NAME_CHARACTERS]!r} stands twice in one object")
            del members[name]
    return members


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _written(text: str) -> float:
    if len(text) <= _SURELY_EXACT and "e" not in text and "E" not in text:
        return float(text)
    number = WrittenFloat(text)
    number.text = text
    return number


_parse = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant).decode
_parse_exactly = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_written
).decode
