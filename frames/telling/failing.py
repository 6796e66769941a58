"""Failing single messages of a batch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tiercel.frames.columns import DELIVERY
from tiercel.frames.errors import FramesError, ReaderGoneError
from tiercel.frames.telling.post import tell

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Messages per word.
_AT_ONCE = 10_000
_REASON_CHARACTERS = 500
# As ``delivery_name`` writes it; a look has no reader.
_NAME = re.compile(r"([0-9a-f]{16})\.(\d+)\.(\d+)\.(\d+)", re.ASCII)


def fail_messages(rows: DataFrame, reason: str | Column, *, again: bool = True) -> int:
    """Fail the messages of these rows instead of acking them, when their batch is committed.

    Call it in ``foreachBatch``, with rows that still have the column ``delivery``; ``reason`` is a
    text, or a column of the rows. A failed message is delivered again after a back-off, and goes to
    its dead-letter queue with the reason when it has failed more often than ``deliveryLimit``; with
    ``again=False`` it goes there at once. Returns how many messages that is; one that was given
    back meanwhile, because a connection was lost, is not counted: it comes again anyway.

    Raises ReaderGoneError if the query has ended, and FramesError without that column, before any
    message has failed.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - no session is needed to import this module

    if DELIVERY not in rows.columns:
        raise FramesError(
            f"fail_messages needs the column {DELIVERY!r} of the rows that were read; keep it in "
            "the select"
        )
    text = functions.lit(reason) if isinstance(reason, str) else reason
    failures = _by_reader(rows.select(DELIVERY, text.cast("string")).collect())
    return sum(_tell(reader, those, again=again) for reader, those in failures.items())


def _by_reader(rows: Iterable[tuple[Any, Any]]) -> dict[str, list[list[Any]]]:
    """Return what each reader is to be told; raises FramesError.

    A message of which there are several rows, as after ``explode``, is one, with the first reason.
    """
    failures: dict[str, list[list[Any]]] = {}
    first: dict[Any, Any] = dict(reversed([*rows]))
    for name, why in first.items():
        found = _NAME.fullmatch(str(name))
        if found is None:
            raise FramesError(
                f"{name!r:.50} names no message that a stream has read: {DELIVERY!r} must be the "
                "column of the source, and no field of the body"
            )
        reader, *place = found.groups()
        failed = [*map(int, place), str(why or "")[:_REASON_CHARACTERS]]
        failures.setdefault(reader, []).append(failed)
    return failures


def _tell(reader: str, failures: list[list[Any]], *, again: bool) -> int:
    count = 0
    for at in range(0, len(failures), _AT_ONCE):
        answer = tell(reader, {"fail": failures[at : at + _AT_ONCE], "again": again})
        if answer is None:
            raise ReaderGoneError(
                "the query that read these messages has ended, or runs on another host; they are "
                "delivered again"
            )
        count += int(answer["failed"])
    return count
