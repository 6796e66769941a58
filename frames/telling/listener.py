"""Tells readers that their batches are committed.

Spark's event of a batch's progress comes after the batch was noted in the checkpoint. A reader
hears of that at the next trigger too; with an interval of minutes between triggers this is sooner,
and when a query is stopped it is the only way.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from tiercel.frames.offsets import ReadOffset
from tiercel.frames.telling.post import tell


class CommitListener(StreamingQueryListener):
    """Listens to all queries of a session; says nothing to those that read other sources."""

    def __init__(self) -> None:
        # The readers of each run of a query.
        self._readers: dict[str, set[str]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name, as all of these
        """Nothing is known of its readers yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        for source in progress.sources:
            offset = _offset(source.endOffset)
            if offset is not None:
                self._readers.setdefault(str(progress.runId), set()).add(offset.reader)
                tell(offset.reader, {"committed": offset.messages})

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Readers are asked for their latest offset then."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        for reader in self._readers.pop(str(event.runId), ()):
            tell(reader, {"ended": True})


def _offset(text: str | None) -> ReadOffset | None:
    """Return the offset of a source, if it is one of ours.

    It is JSON, but in a client of Spark Connect of PySpark 4.1 Python's notation of a dictionary.
    """
    for read in (json.loads, ast.literal_eval):
        try:
            offset = read(text or "null")
        except (ValueError, SyntaxError, TypeError):
            continue
        return ReadOffset.parse(offset) if isinstance(offset, dict) else None
    return None
