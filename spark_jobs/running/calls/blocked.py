"""Says which bolt blocks the event loop of its process, and in which line it stands."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

# Time after which a loop that does not answer is blocked.
BLOCKED_S = 0.5
_LOOK_S = 0.5
# A machine that is busy lets threads wait, with one task or another: the same one, again, blocks.
_AGAIN_S = 0.1
_SAID_S = 60.0
_OURS = Path(__file__).parent
_ASYNCIO = Path(asyncio.__file__).parent
_THREADING = Path(threading.__file__)


class BlockedLook:
    """Looks at a loop from a thread of its own, twice per second."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        owners: Mapping[asyncio.Task[Any], str | None],
    ) -> None:
        """``owners`` has the component of each task."""
        self._loop = loop
        self._loop_thread = thread
        self._owners = owners
        self._over = threading.Event()
        self._said: dict[str, float] = {}
        # The task that blocks the loop.
        self.blocking: asyncio.Task[Any] | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="look at the loop", daemon=True).start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            answered = threading.Event()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # closed
                return
            if answered.wait(BLOCKED_S):
                continue
            suspect = asyncio.current_task(self._loop)
            if answered.wait(_AGAIN_S) or suspect is None:
                continue
            if asyncio.current_task(self._loop) is suspect:
                self.blocking = suspect
                self._say(suspect)
                while not answered.wait(_LOOK_S) and not self._over.is_set():
                    continue
                self.blocking = None

    def _say(self, task: asyncio.Task[Any]) -> None:
        component = self._owners.get(task) or "a bolt"
        now = time.monotonic()
        if now - self._said.get(component, -_SAID_S) < _SAID_S:
            return
        self._said[component] = now
        log.warning(
            "%s blocks the event loop of its process, and all AsyncBolts there, for more than "
            "%g s, at %s: await something, or use asyncio.to_thread, or a BasicBolt with threads",
            component, BLOCKED_S, self._place(), extra={"event": "loop_blocked"},
        )  # fmt: skip

    def _place(self) -> str:
        """The line of the bolt's own code in which the loop stands."""
        frame = sys._current_frames().get(self._loop_thread.ident or 0)  # noqa: SLF001 - documented, and the only way
        for place in traceback.extract_stack(frame) if frame else ():
            path = Path(place.filename)
            if path != _THREADING and not {_OURS, _ASYNCIO} & set(path.parents):
                return f"{place.filename}, line {place.lineno}, in {place.name}"
        return "a line that cannot be told"
