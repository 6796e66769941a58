"""One task's inbox in memory, as one attempt at the task has it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from tiercel.queues.inbox.contract import Effect
from tiercel.queues.inbox.memory_box import Box, number_of
from tiercel.queues.inbox.records import (
    NO_CLAIMS,
    Claims,
    Covered,
    Entry,
    Opened,
    Rest,
    StaleAttemptError,
)
from tiercel.queues.inbox.rules import stale, unfinished, unsealed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemoryEffect(Generic[T]):
    """An effect within this process."""

    call: Callable[[], T]

    def perform(self) -> T:
        return self.call()


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """The line of a task."""

    # Gives what came back to it, and the line, if they are of the inbox's run; under the lock.
    found: Callable[[], Sequence[Box | None]] = tuple
    # Number of tasks that share it.
    tasks: int = 1

    @property
    def boxes(self) -> list[Box]:
        """The places to claim from, in this order."""
        return [box for box in self.found() if box is not None]

    @property
    def share(self) -> int:
        """One task's part of the tuples that wait, without those that came back."""
        return sum(box.tuples for box in self.found()[1:] if box is not None) // self.tasks

    @property
    def returned(self) -> Box | None:
        """The tuples that came back to it."""
        return next(iter(self.found()), None)


class MemoryInbox:
    """``Inbox`` within one process."""

    def __init__(
        self,
        attended: Callable[[], Box | None],
        changed: threading.Condition,
        task: int,
        opened: Opened,
        line: MemoryLine | None = None,
    ) -> None:
        """``attended`` gives the inbox while it belongs to this attempt, under the lock of
        ``changed``.
        """
        self._attended = attended
        self._changed = changed
        self._task = task
        self._opened = opened
        self._line = line or MemoryLine()
        self._after = 0
        self._woken = False

    @property
    def opened(self) -> Opened:
        return self._opened

    def take(
        self,
        tuples: int,
        size: int,
        wait: timedelta,
        finishing: int | None = None,
        claims: Claims = NO_CLAIMS,
    ) -> list[Entry]:
        if finishing is not None:
            self._finish(finishing)
        with self._changed:
            if wait:
                self._changed.wait_for(
                    lambda: (
                        self._woken
                        or self._box().last > self._after
                        or (any(claims) and any(box.entries for box in self._line.boxes))
                    ),
                    wait.total_seconds(),
                )
            self._woken = False
            box = self._box()
            entries = box.after(self._after, tuples, size)
            had, room = 0, size
            for entry in entries:
                had += entry.tuples
                room -= len(entry.payload)
            most = claims.tuples - had
            most = max(most, min(most + claims.more, self._line.share)) if claims.more else most
            at_end = not entries or number_of(entries[-1].position) == max(box.entries)
            if most > 0 and at_end and (not entries or (room > 0 and had < tuples)):
                entries += self._claim(box, most, room)
            if entries:
                box.taken = entries[-1].position
            # Do not wait for entries that were drained away in the meantime.
            self._after = number_of(entries[-1].position) if entries else box.last
            return entries

    def read(self, positions: Sequence[str]) -> list[Entry]:
        with self._changed:
            entries = self._box().entries
            return [entries[number][1] for number in map(number_of, positions) if number in entries]

    def seal(self, covered: Covered, snapshot: bytes | None = None) -> Effect[bool]:
        return MemoryEffect(lambda: self._seal(covered, snapshot))

    def finish(self, step: int) -> Effect[bool]:
        return MemoryEffect(lambda: self._finish(step))

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        pass

    def give_back(self, rests: Sequence[Rest]) -> Effect[bool]:
        return MemoryEffect(lambda: self._give_back(rests))

    def _claim(self, box: Box, most: int, room: int) -> list[Entry]:
        claimed: list[Entry] = []
        for line in self._line.boxes:
            while most > 0 and line.entries and (room > 0 or not claimed):
                appended, _ = next(iter(line.entries.values()))
                payload, count, first = line.claim(most)
                claimed.append(box.add(payload, count, appended, first))
                most -= count
                room -= len(payload)
        return claimed

    def _give_back(self, rests: Sequence[Rest]) -> bool:
        with self._changed:
            try:
                box = self._box()
            except StaleAttemptError:
                return False
            returned = self._line.returned
            if returned is None:
                return False
            for rest in rests:
                appended, entry = box.entries.get(number_of(rest.position), (0.0, None))
                if entry is None or (rest.done and box.done.get(rest.position) == rest.done):
                    continue
                first = (entry.first or 0) + rest.first
                returned.add(entry.payload, entry.tuples - rest.first, appended, first)
                if rest.done:
                    box.done[rest.position] = rest.done
                else:
                    box.remove([rest.position])
                    box.free(entry.tuples, len(entry.payload))
            self._changed.notify_all()
            return True

    def _box(self) -> Box:
        box = self._attended()
        if box is None:
            raise stale(self._task)
        return box

    def _seal(self, covered: Covered, snapshot: bytes | None) -> bool:
        with self._changed:
            try:
                box = self._box()
            except StaleAttemptError:
                return False
            if box.sealed is None and covered.step > box.step:
                box.sealed = covered
                box.sealed_snapshot = snapshot
            elif box.sealed is not None and covered.step == box.sealed.step:
                box.sealed_snapshot = snapshot
            elif box.sealed is not None and covered.step > box.sealed.step:
                raise unfinished(covered.step)
            return True

    def _finish(self, step: int) -> bool:
        with self._changed:
            try:
                box = self._box()
            except StaleAttemptError:
                return False
            if step <= box.step:
                return True
            covered = box.sealed
            if covered is None or covered.step != step:
                raise unsealed(step)
            box.done.update(covered.part)
            box.remove(covered.whole)
            box.free(covered.tuples, covered.bytes)
            box.step = step
            box.ticks = covered.ticks
            box.sealed = None
            if box.sealed_snapshot is not None:
                box.snapshot = box.sealed_snapshot
            box.sealed_snapshot = None
            return True
