"""Inboxes within one process: the oracle of the contract's suite, and used by the test kit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import Any

from tiercel.acker.effects import Effect, Following, LocalEffect
from tiercel.acker.ids import is_extra, is_line, part_of_line, returned_to, task_of, tasks_of
from tiercel.acker.inbox.chunk import Appended, Parcel, check_append
from tiercel.acker.inbox.contract import (
    DRAINED_BYTES,
    DRAINED_TUPLES,
    NOTHING_HELD,
    Bounds,
    Claims,
    Covered,
    Entry,
    Heard,
    Holdings,
    InboxFigures,
    Opened,
    Rest,
    Sender,
    drawn_sender,
    joined_figures,
    number_of_run,
    stale,
    superseded,
    unfinished,
    unsealed,
)


class MemoryInboxes:
    """``Inboxes`` within one process.

    ``clock`` returns seconds; no call waits for it to advance.
    """

    def __init__(
        self, bounds: Bounds | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bounds = bounds or Bounds()
        self._clock = clock
        self._boxes: dict[int, Box] = {}
        self._forgotten = 0
        # Number of drawn senders.
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
                    # Never reuse a position.
                    self._forgotten = max(self._forgotten, box.last)
                    del self._boxes[task]
                elif box.run != run:
                    self._boxes[task] = box.adopted(run)
            self._changed.notify_all()

    def drain(self, run: str, only: Sequence[int] | None = None) -> list[tuple[int, list[Entry]]]:
        with self._changed:
            chosen = [place for one in only or () for place in _places_of(one)]
            found = [
                (task, self._of(run, task).after(0, DRAINED_TUPLES, DRAINED_BYTES))
                for task in (sorted(self._boxes) if only is None else chosen)
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

    def leave(self, run: str, tasks: Sequence[int]) -> None:
        with self._changed:
            for task in tasks:
                box = self._boxes.get(task)
                if box is not None and box.run == run:
                    box.leaving = box.drawn

    def figures(self, tasks: Sequence[int], *, extra: bool = False) -> dict[int, InboxFigures]:
        with self._changed:
            now, all_ = self._clock(), [*tasks, *filter(is_extra, self._boxes if extra else ())]
            boxes = {task: map(self._boxes.get, _places_of(task)) for task in all_}
            return {
                task: joined_figures([figures_of(box or Box(""), now) for box in parts])
                for task, parts in boxes.items()
            }

    def draw(self, run: str, task: int) -> int:
        with self._changed:
            box = self._of(run, task)
            box.drawn += 1
            return box.drawn

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        with self._changed:
            # Fence all places, even if one refuses.
            fenced = [self._fence(run, sender, at) for one in targets for at in _places_of(one)]
            if not all(fenced):
                raise stale(sender.task)

    def open(self, run: str, task: int, attempt: int, line: int | None = None) -> MemoryInbox:
        with self._changed:
            box = self._of(run, task)
            if box.attempt > attempt:
                raise stale(task)
            box.attempt = attempt
            # Wake an older attempt that waits, so that it ends.
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
        doing_s: Mapping[int, float],
        place: str,
        held: Mapping[int, Holdings] | None = None,
    ) -> Heard:
        with self._changed:
            lost = []
            leaving = []
            for task, attempt in attempts.items():
                box = self._boxes.get(task)
                if box is None or box.run != run or box.attempt > attempt:
                    lost.append(task)
                else:
                    box.seen = self._clock()
                    box.place = place
                    box.held = (held or {}).get(task, NOTHING_HELD)
                    box.since = box.seen - doing_s[task] if task in doing_s else None
                    if box.leaving >= attempt:
                        leaving.append(task)
            return Heard(stale=lost, leaving=leaving)

    def draw_sender(self) -> Sender:
        with self._changed:
            self._drawn += 1
            return drawn_sender(self._drawn)

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        check_append(number, parcels)
        return [
            LocalEffect(partial(self._append, run, sender, number, parcel)) for parcel in parcels
        ]

    def lacks(self, sender: Sender, number: int, parcel: Parcel) -> Effect[bool]:
        def look() -> bool:
            with self._changed:
                box = self._boxes.get(_places_of(parcel.target)[0])
                known = None if box is None else box.senders.get(sender.task)
            return known is None or (known.number, known.part) < (number, parcel.part)

        return LocalEffect(look)

    def has_room(self, run: str, sender: Sender, number: int, parcel: Parcel) -> Effect[bool]:  # noqa: ARG002 - a line has one part here
        def look() -> bool:
            with self._changed:
                box = self._receiver(run, sender, parcel.target)
                return box is None or self._has_room(box, parcel)

        return LocalEffect(look)

    def close(self) -> None:
        pass

    def _attended(self, run: str, task: int, attempt: int) -> Box | None:
        """Return the inbox if it belongs to this attempt. Hold the lock."""
        box = self._boxes.get(task)
        return box if box is not None and (box.run, box.attempt) == (run, attempt) else None

    def _line(self, run: str, line: int) -> Sequence[Box | None]:
        """Return the box of tuples returned to a line, then the line's own, each if it belongs to
        the run. Hold the lock.
        """
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
            box = self._receiver(run, sender, parcel.target)
            if box is None:
                return Appended.STALE
            known = box.senders.get(sender.task, Known(sender.attempt))
            before, last = (known.number, known.part), (number, parcel.part)
            if last <= before:
                same = last < before or parcel.digest == known.digest
                return Appended.REPEATED if same else Appended.DIFFERENT
            if not self._has_room(box, parcel):
                return Appended.FULL
            box.senders[sender.task] = Known(sender.attempt, number, parcel.part, parcel.digest)
            box.forget_senders(self._bounds.senders)
            for chunk, tuples in zip(parcel.chunks, parcel.tuples, strict=True):
                box.add(bytes(chunk), tuples, self._clock())
            self._changed.notify_all()
            return Appended.DONE

    def _receiver(self, run: str, sender: Sender, target: int) -> Box | None:
        """Return the box for a sender's appends; None if it is stale there. Hold the lock."""
        box = self._boxes.get(_places_of(target)[0])
        if box is None or box.run != run:
            return None
        known = box.senders.get(sender.task)
        if known is None:
            return None if box.forgotten <= sender.task < -1 else box
        return None if known.attempt > sender.attempt else box

    def _has_room(self, box: Box, parcel: Parcel) -> bool:
        tuples, size = box.tuples + sum(parcel.tuples), box.size + sum(map(len, parcel.chunks))
        fits = tuples <= self._bounds.tuples and size <= self._bounds.bytes
        return fits or not parcel.bounded or not box.entries

    def _of(self, run: str, task: int) -> Box:
        box = self._boxes.get(task)
        if box is None or box.run != run:
            raise stale(task)
        return box


@cache
def _places_of(target: int) -> tuple[int, ...]:
    """Return the ids of the boxes of an inbox or a line, first the box that takes appends."""
    if not is_line(target):
        return (target,)
    part = part_of_line(task_of(target))
    return part, returned_to(part)


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """The line of a task."""

    # Returns the box of returned tuples, then the line's own, each if it belongs to the inbox's
    # run; called under the lock.
    found: Callable[[], Sequence[Box | None]] = tuple
    # Number of tasks that share the line.
    tasks: int = 1

    @property
    def boxes(self) -> list[Box]:
        """The boxes to claim from, in order."""
        return [box for box in self.found() if box is not None]

    @property
    def share(self) -> int:
        """One task's share of the waiting tuples, not counting returned tuples."""
        return sum(box.tuples for box in self.found()[1:] if box is not None) // self.tasks

    @property
    def returned(self) -> Box | None:
        """The box of tuples that were returned to the line."""
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
        """``attended`` returns the inbox while it belongs to this attempt, under the lock of
        ``changed``.
        """
        self._attended = attended
        self._changed = changed
        self._task = task
        self.opened = opened
        self._line = line or MemoryLine()
        self._after = 0
        self._woken = False

    def take(  # noqa: PLR0913 - see ``Inbox``
        self, tuples: int, size: int, wait: timedelta, finishing: int | None, claims: Claims,
        *, then: Following[Any] | None = None,
    ) -> list[Entry]:  # fmt: skip
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
            had = sum(entry.tuples for entry in entries)
            room = size - sum(len(entry.payload) for entry in entries)
            most = claims.tuples - had
            most = max(most, min(most + claims.more, self._line.share)) if claims.more else most
            at_end = not entries or number_of(entries[-1].position) == max(box.entries)
            if most > 0 and at_end and (not entries or (room > 0 and had < tuples)):
                entries += self._claim(box, most, room)
            if entries:
                box.taken = entries[-1].position
                if then is not None:  # if it raises, the next take returns the entries again
                    then.reply = then.effect.perform()
            # Do not wait for entries that were drained away in the meantime.
            self._after = number_of(entries[-1].position) if entries else box.last
            return entries

    def read(self, positions: Sequence[str]) -> list[Entry]:
        with self._changed:
            entries = self._box().entries
            return [entries[number][1] for number in map(number_of, positions) if number in entries]

    def seal(self, covered: Covered, snapshot: bytes | None = None) -> Effect[bool]:
        return LocalEffect(lambda: self._seal(covered, snapshot))

    def finish(self, step: int) -> Effect[bool]:
        return LocalEffect(lambda: self._finish(step))

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        pass

    def give_back(self, rests: Sequence[Rest]) -> Effect[bool]:
        return LocalEffect(lambda: self._give_back(rests))

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
            box, returned = self._attended(), self._line.returned
            if box is None or returned is None:
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
            box = self._attended()
            if box is None:
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
            box = self._attended()
            if box is None:
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


@dataclass(slots=True)
class Box:
    """One inbox, with the fields that its hash has in Redis."""

    run: str
    drawn_before: int = 0
    drawn: int = 0
    # The newest attempt that was asked to leave.
    leaving: int = -1
    attempt: int = 0
    step: int = 0
    sealed: Covered | None = None
    snapshot: bytes | None = None
    sealed_snapshot: bytes | None = None
    # Snapshots of earlier runs.
    left: list[bytes] = field(default_factory=list)
    ticks: int = 0
    taken: str | None = None
    seen: float | None = None
    # As its process reported.
    held: Holdings = NOTHING_HELD
    # The time at which the current call of its process began.
    since: float | None = None
    # The place where its process runs, as it reported.
    place: str = ""
    tuples: int = 0
    size: int = 0
    last: int = 0
    entries: dict[int, tuple[float, Entry]] = field(default_factory=dict)
    done: dict[str, bytes] = field(default_factory=dict)
    senders: dict[int, Known] = field(default_factory=dict)
    # Number of claimed tuples by entry, if the box is a line.
    claimed: dict[int, int] = field(default_factory=dict)
    # The drawn sender that was forgotten last.
    forgotten: int = 0

    @property
    def is_empty(self) -> bool:
        """True if it holds no entries or snapshots whose roots must be released."""
        kept = (self.snapshot, self.sealed_snapshot)
        return not self.entries and not self.left and kept == (None, None)

    def adopted(self, run: str) -> Box:
        """Return an inbox with the same entries that belongs to ``run``."""
        return Box(
            run,
            drawn_before=self.drawn,
            drawn=self.drawn,
            attempt=self.attempt,
            tuples=self.tuples,
            size=self.size,
            last=self.last,
            entries=self.entries,
            left=[
                *self.left,
                *(one for one in (self.snapshot, self.sealed_snapshot) if one is not None),
            ],
        )

    def add(self, payload: bytes, tuples: int, now: float, first: int | None = None) -> Entry:
        self.last += 1
        entry = Entry(position=f"{self.last}-0", tuples=tuples, payload=payload, first=first)
        self.entries[self.last] = (now, entry)
        self.tuples += tuples
        self.size += len(payload)
        return entry

    def claim(self, most: int) -> tuple[bytes, int, int]:
        """Take tuples from the head of a line; return payload, number of tuples and first row."""
        number, (_, entry) = next(iter(self.entries.items()))
        before = self.claimed.pop(number, 0)
        count = min(most, entry.tuples - before)
        whole = before + count == entry.tuples
        if whole:
            del self.entries[number]
        else:
            self.claimed[number] = before + count
        self.free(count, len(entry.payload) if whole else 0)
        return entry.payload, count, (entry.first or 0) + before

    def forget_senders(self, most: int) -> None:
        """Forget the older half of the drawn senders if there are more than ``most``."""
        drawn = sorted((sender for sender in self.senders if sender < -1), reverse=True)
        if len(drawn) > most:
            for sender in drawn[: len(drawn) // 2]:
                del self.senders[sender]
                self.forgotten = sender

    def remove(self, positions: Sequence[str]) -> list[Entry]:
        """Delete and return entries, without freeing their room."""
        gone = []
        for position in positions:
            self.done.pop(position, None)
            _, entry = self.entries.pop(number_of(position), (0.0, None))
            if entry is not None:
                gone.append(entry)
        return gone

    def free(self, tuples: int, size: int) -> None:
        self.tuples = max(0, self.tuples - tuples) if self.entries else 0
        self.size = max(0, self.size - size) if self.entries else 0

    def after(self, number: int, tuples: int, size: int) -> list[Entry]:
        """Return as many entries after ``number`` as fit, but at least one if there is any."""
        found: list[Entry] = []
        for position, (_, entry) in self.entries.items():
            if position <= number:
                continue
            tuples -= entry.tuples
            size -= len(entry.payload)
            if found and (tuples < 0 or size < 0):
                break
            found.append(entry)
            if tuples <= 0 or size <= 0:
                break
        return found


@dataclass(slots=True)
class Known:
    """The last append of one sender."""

    attempt: int
    number: int = 0
    part: int = 0
    digest: str = ""


def number_of(position: str) -> int:
    """Return the number in a position."""
    return int(position.partition("-")[0])


def figures_of(box: Box, now: float) -> InboxFigures:
    """Return the figures of an inbox."""
    appended = next((at for at, _ in box.entries.values()), now)
    return InboxFigures(
        tuples=box.tuples,
        bytes=box.size,
        adopted=box.run != "",
        oldest_s=max(0.0, now - appended),
        attempts=box.drawn - box.drawn_before,
        seen_s=None if box.seen is None else max(0.0, now - box.seen),
        doing_s=None if box.since is None else max(0.0, now - box.since),
        place=box.place,
        retrying=box.held.retrying,
        windows=box.held.windows,
    )
