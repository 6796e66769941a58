"""Numbers of tasks per bolt: as an operator types them, and as they travel in Redis. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import quote, unquote

from tiercel.workers.errors import UsageError

# Of one bolt. Each is an inbox in Redis that the driver looks at every second; more is a
# slip of the finger.
MOST_TASKS = 10_000
_DEFAULT = "default"

# Bolt to its number of tasks; None takes an order back.
Change = Mapping[str, int | None]


def parse_change(options: Iterable[str]) -> dict[str, int | None]:
    """Read ``BOLT=N`` and ``BOLT=default``. Raises UsageError.

    >>> parse_change(["count=4", "split=default"])
    {'count': 4, 'split': None}
    """
    change: dict[str, int | None] = {}
    for option in options:
        bolt, equals, number = option.rpartition("=")
        if not equals or not bolt:
            raise UsageError(
                f"--parallelism {option!r}: write BOLT=N, such as --parallelism count=4"
            )
        if bolt in change:
            raise UsageError(f"--parallelism names bolt {bolt!r} twice: give one number")
        change[bolt] = None if number == _DEFAULT else _ordered(bolt, number)
    return change


def number_of(text: str) -> int:
    """Return the number of tasks that this is. Raises ValueError for anything that cannot be one.

    >>> number_of("4")
    4
    """
    number = (
        int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MOST_TASKS)) else 0
    )
    if not 1 <= number <= MOST_TASKS:
        raise ValueError(f"not a number of tasks from 1 to {MOST_TASKS:,}")
    return number


def pack(numbers: Mapping[str, int]) -> str:
    """Write numbers as one word.

    >>> pack({"count": 4, "split words": 2})
    'count=4,split%20words=2'
    """
    return ",".join(
        f"{quote(bolt, safe='', errors='surrogatepass')}={number}"
        for bolt, number in numbers.items()
    )


def unpack(word: str) -> dict[str, int]:
    """Read what ``pack`` wrote; what another version or a stranger wrote is passed over.

    >>> unpack("count=4,split%20words=2,more,most=99999999999")
    {'count': 4, 'split words': 2}
    """
    numbers = {}
    for part in word.split(","):
        bolt, _, number = part.partition("=")
        with suppress(ValueError):
            numbers[unquote(bolt, errors="surrogatepass")] = number_of(number)
    return numbers


def _ordered(bolt: str, number: str) -> int:
    try:
        return number_of(number)
    except ValueError:
        raise UsageError(
            f"bolt {bolt!r} cannot have {number!r} tasks: give a number from 1 to {MOST_TASKS:,}, "
            f"or {_DEFAULT} for what its code says"
        ) from None
