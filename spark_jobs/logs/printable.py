"""Makes text of strangers harmless to a terminal: control characters become readable escapes.

Reasons, bodies and names are written by publishers, bolts and all clients of Redis. A
terminal obeys C0 and C1 controls (titles, colours, its clipboard), and shows text after a
bidirectional override in another order. Everything that tiercel shows or logs passes through
here, and here alone.
"""

from __future__ import annotations

import unicodedata


def printable(text: str, kept: str = "") -> str:
    r"""``text`` with every character that is not seen as itself escaped as in Python, but
    those in ``kept``.

    >>> printable("a\x1b[2Jb\x9b\u202e\n")
    'a\\x1b[2Jb\\x9b\\u202e\\n'
    >>> printable("two\nlines, 日本　語", kept="\n")
    'two\nlines, 日本　語'
    """
    if text.isprintable():
        return text
    return "".join(each if each in kept or _is_seen(each) else _escaped(each) for each in text)


def _is_seen(character: str) -> bool:
    # str.isprintable refuses every blank but the ordinary one; the others are harmless.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
