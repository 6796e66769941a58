"""Context managers for building tests."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import Self


class Entered(ABC):
    """Enters several context managers, one after the other.

    All of them are exited at the end, or as soon as one fails.
    """

    # For context managers entered later.
    _exits: ExitStack

    @abstractmethod
    def _enter(self, exits: ExitStack) -> None: ...

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self._enter(exits)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.__exit__(kind, error, trace)


class Looking(ABC):
    """Looks repeatedly while entered, on its own thread."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @abstractmethod
    def _look(self) -> None: ...

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self._look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
