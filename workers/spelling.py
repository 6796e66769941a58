"""A name that is nearly one of those that there are: it was probably meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'topology'?``, the end of an error's line; empty if none is near.

    >>> did_you_mean("topolgy", ["topology", "Split"])
    "; did you mean 'topology'?"
    >>> did_you_mean("orders", ["Split"])
    ''
    """
    found = get_close_matches(name, sorted(set(known) - {name}))
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
