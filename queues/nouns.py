"""Articles, plurals and near names for nouns in messages to people."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import (
    getattr_static,
    isasyncgenfunction,
    iscoroutinefunction,
    isgeneratorfunction,
    signature,
)
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LAZY: tuple[tuple[Callable[[object], bool], str], ...] = (
    (iscoroutinefunction, "async"),
    (isgeneratorfunction, "a generator"),
    (isasyncgenfunction, "an async generator"),
)


def with_article(noun: str) -> str:
    """Return the noun with ``a`` or ``an``.

    >>> with_article("long"), with_article("int"), with_article("array<int>")
    ('a long', 'an int', 'an array<int>')
    """
    return f"an {noun}" if noun[:1].lower() in tuple("aeio") else f"a {noun}"


def kind_of(thing: object) -> str:
    """Name the kind of a thing of the wrong type, for an error.

    >>> kind_of({}), kind_of(int)
    ('a dict', 'the class int (write int())')
    """
    if isinstance(thing, type):
        return f"the class {thing.__name__} (write {thing.__name__}())"
    return with_article(type(thing).__name__)


def lazy_kind(function: object) -> str:
    """Name the kind of a function that runs nothing when it is called; empty for any other.

    >>> lazy_kind(counted)
    ''
    """
    called = getattr_static(type(function), "__call__", None)  # of an object that is no function
    for is_lazy, kind in _LAZY:
        if is_lazy(function) or is_lazy(called):
            return kind
    return ""


def counted(number: int, noun: str) -> str:
    """Return a number with a noun whose plural ends with ``s``.

    >>> counted(1, "message"), counted(0, "message"), counted(26151, "message")
    ('1 message', '0 messages', '26,151 messages')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def did_you_mean(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return ``; did you mean 'topology'?`` to end a message; empty if no known name is close.

    ``least`` is the least likeness of the two names, from 0 to 1.

    >>> did_you_mean("topolgy", ["topology", "Split"])
    "; did you mean 'topology'?"
    >>> did_you_mean("orders", ["Split"])
    ''
    """
    found = get_close_matches(name, sorted(set(known) - {name}), cutoff=least)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def refuse_typos(call: Callable[P, R]) -> Callable[P, R]:
    """Have an unknown keyword refused with the nearest name: Python does so from 3.13 on."""
    known = set(signature(call).parameters) - {"self"}

    @wraps(call)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name in given.keys() - known:
            what = call.__qualname__.removesuffix(".__init__")
            raise TypeError(f"{what} has no keyword {name!r}{did_you_mean(name, known)}")
        return call(*args, **given)

    return checked
