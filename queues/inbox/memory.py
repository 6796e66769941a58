"""Inboxes in one process: the oracle of the contract's suite, and the kit's engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from tiercel.queues.inbox.contract import Effect
from tiercel.queues.inbox.memory_box import Box, Known, figures_of
from tiercel.queues.inbox.memory_inbox import MemoryEffect, MemoryInbox, MemoryLine
from tiercel.queues.inbox.records import (
    NO_CALLS,
    Appended,
    Bounds,
    Entry,
    InboxFigures,
    Opened,
    Parcel,
    Sender,
    joined_figures,
)
from tiercel.queues.inbox.rules import (
    DRAINED_BYTES,
    DRAINED_TUPLES,
    check_append,
    drawn_sender,
    is_line,
    number_of_run,
    part_of_line,
    returned_to,
    stale,
    superseded,
    task_of,
    tasks_of,
)


class MemoryInboxes:
    """``Inboxes`` within one process.

    ``clock`` gives seconds; nothing here waits for it to go on.
    """

    def __init__(
        self, bounds: Bounds | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bounds = bounds or Bounds()
        self._clock = clock
        self._boxes: dict[int, Box] = {}
        self._forgotten = 0
        # Senders.
        self._drawn = 0
        self._changed = threading.Condition()

    def adopt(self, run: str, tasks: Sequence[int]) -> None:
        with self._changed:
            if any(number_of_run(box.run) > number_of_run(run) for box in self._boxes.values()):
                raise superseded(run)
            wanted = {place for task in tasks for place in _places_of(task)}
            for task in {*wanted, *self._boxes}:
                box = self._boxes.get(task) or Box("", last=self._forgotten)
                if task not in wanted and box.is_empty:
                    # Positions never come again.
                    self._forgotten = max(self._forgotten, box.last)
                    del self._boxes[task]
                elif box.run != run:
                    self._boxes[task] = box.adopted(run)
            self._changed.notify_all()

    def drain(self, run: str) -> list[tuple[int, list[Entry]]]:
        with self._changed:
            for task in self._boxes:
                self._of(run, task)
            found = [
                (task, box.after(0, DRAINED_TUPLES, DRAINED_BYTES))
                for task, box in sorted(self._boxes.items())
            ]
            return [(task, entries) for task, entries in found if entries]

    def discard(self, run: str, task: int, positions: Sequence[str]) -> None:
        with self._changed:
            box = self._of(run, task)
            gone = box.remove(positions)
            box.free(sum(entry.tuples for entry in gone), sum(len(entry.payload) for entry in gone))

    def snapshots(self, run: str) -> list[tuple[int, bytes]]:
        with self._changed:
            return [(task, one) for task in sorted(self._boxes) for one in self._of(run, task).left]

    def forget_snapshot(self, run: str, task: int) -> None:
        with self._changed:
            self._of(run, task).left.clear()

    def figures(self, tasks: Sequence[int]) -> dict[int, InboxFigures]:
        with self._changed:
            now = self._clock()
            return {
                task: joined_figures(
                    [
                        figures_of(self._boxes.get(place) or Box(""), now)
                        for place in _places_of(task)
                    ]
                )
                for task in tasks
            }

    def draw(self, run: str, task: int) -> int:
        with self._changed:
            box = self._of(run, task)
            box.drawn += 1
            return box.drawn

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        with self._changed:
            # All of them, whatever one says.
            fenced = [
                self._fence(run, sender, place) for one in targets for place in _places_of(one)
            ]
            if not all(fenced):
                raise stale(sender.task)

    def open(self, run: str, task: int, attempt: int, line: int | None = None) -> MemoryInbox:
        with self._changed:
            box = self._of(run, task)
            if box.attempt > attempt:
                raise stale(task)
            box.attempt = attempt
            # An older attempt that waits finds out.
            self._changed.notify_all()
            opened = Opened(
                step=box.step,
                sealed=box.sealed,
                done=dict(box.done),
                taken=box.taken,
                ticks=box.ticks,
                snapshot=box.snapshot,
            )
        attended = partial(self._attended, run, task, attempt)
        if line is None:
            return MemoryInbox(attended, self._changed, task, opened)
        shared = MemoryLine(partial(self._line, run, line), len(tasks_of(line)))
        return MemoryInbox(attended, self._changed, task, opened, shared)

    def beat(
        self,
        run: str,
        attempts: Mapping[int, int],
        doing_s: Mapping[int, float] = NO_CALLS,
        place: str = "",
    ) -> list[int]:
        with self._changed:
            lost = []
            for task, attempt in attempts.items():
                box = self._boxes.get(task)
                if box is None or box.run != run or box.attempt > attempt:
                    lost.append(task)
                else:
                    box.seen = self._clock()
                    box.place = place
                    box.since = box.seen - doing_s[task] if task in doing_s else None
            return lost

    def draw_sender(self) -> Sender:
        with self._changed:
            self._drawn += 1
            return drawn_sender(self._drawn)

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        check_append(number, parcels)
        return [
            MemoryEffect(partial(self._append, run, sender, number, parcel)) for parcel in parcels
        ]

    def close(self) -> None:
        pass

    def _attended(self, run: str, task: int, attempt: int) -> Box | None:
        """Return the inbox if it belongs to this attempt. Hold the lock."""
        box = self._boxes.get(task)
        return box if box is not None and (box.run, box.attempt) == (run, attempt) else None

    def _line(self, run: str, line: int) -> Sequence[Box | None]:
        """Return what came back to a line, and the line, if they are the run's. Hold the lock."""
        found = map(self._boxes.get, reversed(_places_of(line)))
        return [box if box and box.run == run else None for box in found]

    def _fence(self, run: str, sender: Sender, place: int) -> bool:
        box = self._boxes.get(place)
        if box is None or box.run != run:
            return False
        known = box.senders.setdefault(sender.task, Known(sender.attempt))
        if known.attempt > sender.attempt:
            return False
        known.attempt = sender.attempt
        return True

    def _append(self, run: str, sender: Sender, number: int, parcel: Parcel) -> Appended:
        with self._changed:
            box = self._boxes.get(_places_of(parcel.target)[0])
            if box is None or box.run != run:
                return Appended.STALE
            if sender.task not in box.senders and box.forgotten <= sender.task < -1:
                return Appended.STALE
            known = box.senders.get(sender.task, Known(sender.attempt))
            if known.attempt > sender.attempt:
                return Appended.STALE
            before, last = (known.number, known.part), (number, parcel.part)
            if last <= before:
                same = last < before or parcel.digest == known.digest
                return Appended.REPEATED if same else Appended.DIFFERENT
            if parcel.bounded and box.entries and not self._has_room(box, parcel):
                return Appended.FULL
            box.senders[sender.task] = Known(sender.attempt, number, parcel.part, parcel.digest)
            box.forget_senders(self._bounds.senders)
            for chunk, tuples in zip(parcel.chunks, parcel.tuples, strict=True):
                box.add(bytes(chunk), tuples, self._clock())
            self._changed.notify_all()
            return Appended.DONE

    def _has_room(self, box: Box, parcel: Parcel) -> bool:
        tuples = box.tuples + sum(parcel.tuples)
        return (
            tuples <= self._bounds.tuples
            and box.size + sum(map(len, parcel.chunks)) <= self._bounds.bytes
        )

    def _of(self, run: str, task: int) -> Box:
        box = self._boxes.get(task)
        if box is None or box.run != run:
            raise stale(task)
        return box


@cache
def _places_of(target: int) -> tuple[int, ...]:
    """Return the ids of the boxes of an inbox, or of a line: first where it is appended to."""
    if not is_line(target):
        return (target,)
    part = part_of_line(task_of(target))
    return part, returned_to(part)
