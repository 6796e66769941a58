"""Entries of a state for people: which key a word means, and what an entry looks like. Pure.

Both are in the state's own notation, the JSON that lies in Redis: ``"falcon"``, ``7``,
``["first page","ann"]``, ``{"$bytes":"/w=="}``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tiercel.spark_jobs.errors import BadStateError
from tiercel.spark_jobs.state.encoding import decode_key, decode_value, encode_key

UNREADABLE = "unreadable"
# Raised by what a stranger has written there.
_STRANGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateEntry:
    """An entry as it lies in Redis."""

    key: str
    # Name of the value's type in Python; ``UNREADABLE`` for what no bolt has put there.
    type: str
    value: str

    def as_json(self) -> dict[str, Any]:
        """Return it with a key and a value that keep their types; as text if it is unreadable."""
        if self.type == UNREADABLE:
            return {"key": self.key, "type": self.type, "value": self.value}
        return {"key": json.loads(self.key), "type": self.type, "value": json.loads(self.value)}


def fields_meant(word: str) -> list[bytes]:
    """Return the fields of the keys that a word may mean, each as the store has it.

    A key in the state's notation means itself, and a number the text of it too; any other
    word is a text.

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
