"""The offset of a query, as Spark keeps it in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReadOffset:
    """So many messages were read by the query, the last of them by this reader.

    RabbitMQ has no positions. What an offset stands for is known to its reader alone, while it
    lives; for any later reader the messages up to there are settled, or back in their queue.
    """

    reader: str
    messages: int

    @classmethod
    def parse(cls, offset: Mapping[str, Any] | None) -> ReadOffset | None:
        """Return None for one that is not of this source."""
        reader, messages = (offset or {}).get("reader"), (offset or {}).get("messages")
        if isinstance(reader, str) and isinstance(messages, int):
            return cls(reader, messages)
        return None

    def json(self) -> dict[str, Any]:
        return {"reader": self.reader, "messages": self.messages}


# A new query begins there.
BEGINNING = ReadOffset("", 0)
