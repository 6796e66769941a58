"""Keys and values of a state as bytes, and entries for display. Pure.

Both are JSON, so that people and other programs can read them: ``"falcon"``, ``7``,
``["first page","ann"]``. An int is its decimal text, which Redis can increment. Bytes are
``{"$bytes": "base64"}``; a dict that looks like such a tag is wrapped, ``{"$dict": {...}}``. Equal
keys have equal bytes.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from tiercel.queues.nouns import with_article
from tiercel.spark_jobs.errors import BadStateError, shown_bytes
from tiercel.spark_jobs.reasons import raised

Key = str | int | bytes | tuple[str | int | bytes, ...]

LARGEST_VALUE = 64 * 1024 * 1024
_BYTES = "$bytes"
_DICT = "$dict"
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_loads = json.JSONDecoder().decode


def encode_key(key: Key) -> bytes:
    """Encode a key. Raises BadStateError for an invalid one."""
    try:
        plain = [_key_part(part) for part in key] if isinstance(key, tuple) else _key_part(key)
        return _dumps(plain).encode()
    except raised() as error:  # ours, or from the key's own code
        raise BadStateError(
            f"{_shown(key)} cannot be a key of a state ({error}): use str, int, bytes or "
            "a tuple of them"
        ) from None


def decode_key(field: bytes) -> Key:
    """Decode a key."""
    plain = _loads(field.decode())
    key: Key = (
        tuple(map(_bytes_or_plain, plain)) if isinstance(plain, list) else _bytes_or_plain(plain)
    )
    return key


def encode_value(value: Any) -> bytes:
    """Encode a value. Raises BadStateError for one that would change when decoded, or is too large
    for one call of Redis.
    """
    try:
        raw = _dumps(_plain(value)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadStateError(
            f"{_shown(value)} cannot be put into a state ({error}): use None, bool, int, "
            "float, str, bytes, and lists and dicts of them"
        ) from None
    if len(raw) > LARGEST_VALUE:
        raise BadStateError(
            f"a value of {len(raw)} bytes cannot be put into a state, which takes "
            f"{shown_bytes(LARGEST_VALUE)}: put it under several keys, or keep a reference to it"
        )
    return raw


def decode_value(raw: bytes) -> Any:
    """Decode a value; every call returns a new object."""
    return _object(_loads(raw.decode()))


def _shown(thing: object) -> str:
    try:
        return f"{thing!r:.60}"
    except raised():  # from a user's __repr__, or for an int with thousands of digits
        return with_article(type(thing).__name__)


def _key_part(part: object) -> object:
    if isinstance(part, bytes):
        return {_BYTES: base64.b64encode(part).decode()}
    if isinstance(part, str | int) and not isinstance(part, bool):
        return part
    kind = "None" if part is None else with_article(type(part).__name__)
    raise TypeError(f"it holds {kind}")


def _bytes_or_plain(plain: Any) -> Any:
    return base64.b64decode(plain[_BYTES]) if isinstance(plain, dict) else plain


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        raise TypeError(f"it holds {with_article(type(value).__name__)}")
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"it holds a dict with the key {name!r:.30}, which is no string")
    plain = {name: _plain(one) for name, one in value.items()}
    return {_DICT: plain} if _is_tag(plain) else plain


def _object(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_object(one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    if _is_tag(plain):
        if _BYTES in plain:
            return base64.b64decode(plain[_BYTES])
        plain = plain[_DICT]
    return {name: _object(one) for name, one in plain.items()}


def _is_tag(plain: dict[str, Any]) -> bool:
    return len(plain) == 1 and (_BYTES in plain or _DICT in plain)


UNREADABLE = "unreadable"
# Errors for bytes that another program has written.
_STRANGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateEntry:
    """An entry as it is stored in Redis."""

    key: str
    # Name of the value's type in Python; ``UNREADABLE`` if no bolt can have written it.
    type: str
    value: str

    def as_json(self) -> dict[str, Any]:
        """Return the entry with a typed key and value, or as text if it is unreadable."""
        if self.type == UNREADABLE:
            return {"key": self.key, "type": self.type, "value": self.value}
        return {"key": json.loads(self.key), "type": self.type, "value": json.loads(self.value)}


def fields_meant(word: str) -> list[bytes]:
    """Return the encoded keys that a user's word may mean.

    A key in the state's notation means itself, a number also its text; any other word is a text.

    >>> fields_meant("falcon"), fields_meant('"7"'), fields_meant("7")
    ([b'"falcon"'], [b'"7"'], [b'7', b'"7"'])
    """
    text = encode_key(word)
    try:
        key = decode_key(word.encode())
        field = encode_key(key)
    except (*_STRANGE, BadStateError):
        return [text]
    return [field, text] if isinstance(key, int) else [field]


def entry_of(field: bytes, raw: bytes) -> StateEntry:
    """Return the entry of a field and its value."""
    try:
        decode_key(field)
        value = decode_value(raw)
        kind = "None" if value is None else type(value).__name__
    except _STRANGE:
        kind = UNREADABLE
    return StateEntry(
        key=field.decode(errors="backslashreplace"),
        type=kind,
        value=raw.decode(errors="backslashreplace"),
    )
