"""The bolt task that logs: each record of a bolt names it, with any logger the bolt uses.

Code that runs a bolt's code elsewhere than on the task's own thread says so there, once more.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

_speaker: ContextVar[tuple[str, int] | None] = ContextVar("speaker", default=None)


def speak_as(component: str, task: int) -> None:
    """Let records name this bolt task, from now on, on this thread or in this coroutine."""
    _speaker.set((component, task))


class Speaking(logging.Filter):
    """Gives each record the attributes ``bolt`` and ``task``, where a bolt task logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        speaker = _speaker.get()
        if speaker is not None and not hasattr(record, "bolt"):
            record.bolt, record.task = speaker
        return True
