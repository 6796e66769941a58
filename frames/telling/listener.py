"""Tells readers that their batches are committed.

Spark's event of a batch's progress comes after the batch was noted in the checkpoint. A reader
hears of that at the next trigger too; with an interval of minutes between triggers this is sooner,
and when a query is stopped it is the only way.
"""

from __future__ import annotations

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
    try:
        offset = json.loads(text or "null")
    except ValueError:
        return None
    return ReadOffset.parse(offset) if isinstance(offset, dict) else None
