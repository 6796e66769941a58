"""One inbox in memory. The caller holds the lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiercel.acker.inbox.records import Covered, Entry, InboxFigures


@dataclass(slots=True)
class Known:
    """The last append of one sender."""

    attempt: int
    number: int = 0
    part: int = 0
    digest: str = ""


@dataclass(slots=True)
class Box:
    """One inbox. Its fields are those of the hash in Redis."""

    run: str
    drawn_before: int = 0
    drawn: int = 0
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
    # When the call began that its process is in.
    since: float | None = None
    # Word that it said of where it runs.
    place: str = ""
    tuples: int = 0
    size: int = 0
    last: int = 0
    entries: dict[int, tuple[float, Entry]] = field(default_factory=dict)
    done: dict[str, bytes] = field(default_factory=dict)
    senders: dict[int, Known] = field(default_factory=dict)
    # Of a line: number of tuples that were claimed of an entry.
    claimed: dict[int, int] = field(default_factory=dict)
    # The last drawn sender that was forgotten.
    forgotten: int = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing is there whose roots are to be released."""
        kept = (self.snapshot, self.sealed_snapshot)
        return not self.entries and not self.left and kept == (None, None)

    def adopted(self, run: str) -> Box:
        """Return the same entries as the inbox of another run."""
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
        """Take tuples from the head of a line that holds some: payload, number, first row."""
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
        """Forget the first half of the drawn senders if there are more than this."""
        drawn = sorted((sender for sender in self.senders if sender < -1), reverse=True)
        if len(drawn) > most:
            for sender in drawn[: len(drawn) // 2]:
                del self.senders[sender]
                self.forgotten = sender

    def remove(self, positions: Sequence[str]) -> list[Entry]:
        """Delete entries and return them, without freeing their room."""
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
        """Return at least one entry beyond ``number`` if there is one, and as many as fit."""
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


def number_of(position: str) -> int:
    """Return the number in a position."""
    return int(position.partition("-")[0])


def figures_of(box: Box, now: float) -> InboxFigures:
    """Look at an inbox."""
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
    )
