"""The Lua scripts of one inbox, each as one typed function that returns an effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from tiercel.queues.inbox.contract import Effect
from tiercel.queues.inbox.covered import decode, encode
from tiercel.queues.inbox.records import (
    Appended,
    Bounds,
    Covered,
    Entry,
    InboxFigures,
    Opened,
    Parcel,
    Rest,
    Sender,
)
from tiercel.queues.inbox.rules import (
    DRAINED_BYTES,
    DRAINED_TUPLES,
    is_drawn,
    name_of,
    stale,
    superseded,
    unfinished,
    unsealed,
)
from tiercel.queues.inbox.server import InboxServer, Script

T = TypeVar("T")
_APPENDED = (Appended.DONE, Appended.REPEATED, Appended.DIFFERENT, Appended.FULL, Appended.STALE)
_SEALED = b"sealed"
_APPEND_WHEN_FULL = "append when full"


class InboxScripts:
    """One inbox on one server, or a part of a line.

    "Or raise" below is: StaleAttemptError if the caller is not the one.
    """

    def __init__(self, server: InboxServer, prefix: str, task: int) -> None:
        """``prefix`` holds a hash tag that the task's line has too."""
        self.server = server
        self.task = task
        self._meta = f"{prefix}meta"
        self._entries = f"{prefix}entries"
        self._senders = f"{prefix}senders"
        self._progress = f"{prefix}progress"
        self._wake = f"{prefix}wake"
        self._snapshots = f"{prefix}snapshots"
        self._prepared: dict[str, Script] = {}

    def adopt(self, run: str, *, known: bool) -> Effect[bool]:
        """Adopt the inbox; forget it (False) if it is empty and its task unknown; or raise."""

        def read(reply: int) -> bool:
            if reply == 2:
                raise superseded(run)
            return bool(reply)

        keys = (
            self._meta,
            self._entries,
            self._senders,
            self._progress,
            self._wake,
            self._snapshots,
        )
        return self._call("adopt", keys, (run, int(known)), read, "adopt")

    def drain(self, run: str) -> Effect[list[Entry]]:
        """Read the first entries, or raise."""
        keys = (self._meta, self._entries)
        return self._call(
            "drain", keys, (run, DRAINED_TUPLES, DRAINED_BYTES), self._read_entries, "drain"
        )

    def discard(self, run: str, positions: Sequence[str]) -> Effect[None]:
        """Delete entries, or raise."""
        keys = (self._meta, self._entries, self._progress)
        return self._call(
            "discard", keys, (run, *positions), self._done_or_raise, "discard entries of"
        )

    def snapshots(self, run: str) -> Effect[list[bytes]]:
        """Read the snapshots of earlier runs, or raise."""

        def read(reply: list[bytes] | None) -> list[bytes]:
            self._done_or_raise(reply is not None)
            return list(reply or ())

        return self._call(
            "snapshots", (self._meta, self._snapshots), (run,), read, "look for snapshots in"
        )

    def forget(self, run: str) -> Effect[None]:
        """Forget the snapshots of earlier runs, or raise."""
        keys = (self._meta, self._snapshots)
        return self._call("forget", keys, (run,), self._done_or_raise, "forget snapshots in")

    def figures(self) -> Effect[InboxFigures]:
        """Look at the inbox."""
        return self._call("figures", (self._meta, self._entries), (), _read_figures, "look at")

    def draw(self, run: str) -> Effect[int]:
        """Draw a number, or raise."""
        return self._call("draw", (self._meta,), (run,), self._read_draw, "draw a number at")

    def fence(self, run: str, sender: Sender) -> Effect[bool]:
        """Fence off older attempts of a sender; False if it is stale itself."""
        args = (run, sender.task, sender.attempt)
        return self._call("fence", (self._meta, self._senders), args, bool, "fence a sender at")

    def open(self, run: str, attempt: int) -> Effect[Opened]:
        """Take the inbox over, or raise."""
        keys = (self._meta, self._progress, self._wake, self._snapshots)
        return self._call("open", keys, (run, attempt), self._read_opened, "open")

    def beat(self, run: str, attempt: int, doing_s: float | None, place: str) -> Effect[bool]:
        """Note that the attempt lives; False if it is stale."""
        doing_ms = -1 if doing_s is None else int(doing_s * 1000)
        args = (run, attempt, doing_ms, place)
        return self._call("beat", (self._meta,), args, bool, "say that a process attends")

    def append(
        self, run: str, sender: Sender, number: int, parcel: Parcel, bounds: Bounds
    ) -> Effect[Appended]:
        """Append a parcel.

        A server whose memory is full takes what a bolt emits only into an inbox that holds nothing,
        so that what is in flight ends there as well, and refuses what a spout emits.
        """
        most = (bounds.tuples, bounds.bytes) if parcel.bounded else (-1, -1)
        first: list[Any] = [run, sender.task, sender.attempt]
        first += (number, parcel.part, parcel.digest)
        rest: list[Any] = [bounds.senders]
        for tuples, chunk in zip(parcel.tuples, parcel.chunks, strict=True):
            rest += (tuples, chunk)
        keys = (self._meta, self._entries, self._senders, self._wake)
        read, verb = _APPENDED.__getitem__, self._verb("append to")
        when_full = None
        if not is_drawn(sender):
            args = (*first, 0, 0, *rest)
            when_full = self._script(_APPEND_WHEN_FULL)(keys, args, read, verb)
        return self._script("append")(keys, (*first, *most, *rest), read, verb, when_full)

    def take(
        self, run: str, attempt: int, after: str, most: tuple[int, int, int], line: Line | None
    ) -> Effect[list[Entry]]:
        """Read entries beyond a position and note it, or raise; ``most`` are tuples, bytes, and
        tuples up to which to claim.
        """
        keys: tuple[str, ...] = (self._meta, self._entries, self._wake)
        if line is not None:
            keys += (line.part.waking, *line.returned.claimed, *line.part.claimed)
        return self._call(
            "take", keys, (run, attempt, after, *most), self._read_entries, "take from"
        )

    def give_back(self, run: str, attempt: int, rests: Sequence[Rest], line: Line) -> Effect[bool]:
        """Give claimed tuples back to the line; False if the attempt is stale."""
        args: list[Any] = [run, attempt]
        for rest in rests:
            args += (rest.position, rest.first, rest.done.hex())
        meta, entries, _ = line.returned.claimed
        keys = (self._meta, self._entries, self._progress, line.part.waking, meta, entries)
        return self._call("give_back", keys, args, bool, "give back from")

    def read(self, run: str, attempt: int, positions: Sequence[str]) -> Effect[list[Entry]]:
        """Read entries, or raise."""
        args = (run, attempt, *positions)
        return self._call("read", (self._meta, self._entries), args, self._read_entries, "read")

    def seal(
        self, run: str, attempt: int, covered: Covered, snapshot: bytes | None
    ) -> Effect[bool]:
        """Seal a step; False if the attempt is stale."""
        args: list[Any] = [run, attempt, covered.step, encode(covered)]
        if snapshot is not None:
            args.append(snapshot)

        def read(reply: int) -> bool:
            if reply == 2:
                raise unfinished(covered.step)
            return bool(reply)

        keys = (self._meta, self._progress, self._snapshots)
        return self._call("seal", keys, args, read, "seal a step of")

    def finish(self, run: str, attempt: int, step: int) -> Effect[bool]:
        """Finish the sealed step; False if the attempt is stale."""

        def read(reply: int) -> bool:
            if reply == 2:
                raise unsealed(step)
            return bool(reply)

        keys = (self._meta, self._entries, self._progress, self._snapshots)
        return self._call("finish", keys, (run, attempt, step), read, "finish a step of")

    def wait(self, most: timedelta, line: Line | None) -> None:
        """Wait for a wake-up: an append, a newer attempt, another run, ``wake``."""
        wakes = [self._wake] if line is None else [self._wake, line.part.waking]
        self.server.wait(wakes, most, self._verb("wait at"))

    def wake(self) -> Effect[None]:
        """Wake the waiting reader."""
        return self.server.command("RPUSH", self._wake, "", read=_nothing, verb=self._verb("wake"))

    @property
    def claimed(self) -> tuple[str, str, str]:
        """Keys of a line that a claim changes."""
        return self._meta, self._entries, self._progress

    @property
    def waking(self) -> str:
        """Key of a line at which its tasks wait."""
        return self._wake

    def _call(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        read: Callable[[Any], T],
        verb: str,
    ) -> Effect[T]:
        return self._script(name)(keys, args, read, self._verb(verb))

    def _script(self, name: str) -> Script:
        script = self._prepared.get(name)
        if script is None:
            script = self._prepared[name] = self.server.script(_source(name))
        return script

    def _verb(self, verb: str) -> str:
        return f"{verb} the inbox of {name_of(self.task)}"

    def _done_or_raise(self, reply: Any) -> None:
        if not reply:
            raise stale(self.task)

    def _read_draw(self, reply: int | None) -> int:
        self._done_or_raise(reply is not None)
        return int(reply or 0)

    def _read_entries(self, reply: Any) -> list[Entry]:
        self._done_or_raise(reply is not None)
        return [_entry(position, *fields) for position, fields in reply]

    def _read_opened(self, reply: Any) -> Opened:
        self._done_or_raise(reply)
        step, ticks, taken, progress, snapshot = reply
        done = dict(zip(progress[::2], progress[1::2], strict=True))
        sealed = done.pop(_SEALED, None)
        return Opened(
            step=int(step),
            sealed=None if sealed is None else decode(sealed.decode()),
            done={
                position.decode(): bytes.fromhex(rows.decode()) for position, rows in done.items()
            },
            taken=None if taken is None else taken.decode(),
            ticks=int(ticks),
            snapshot=snapshot,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The line of a task, where its inbox is."""

    part: InboxScripts
    # What came back to it.
    returned: InboxScripts


def _entry(position: bytes, tuples: bytes | int, payload: bytes, *more: bytes) -> Entry:
    """Make an entry; one that a stranger wrote has no tuples, and cannot be decoded."""
    try:
        count, first = int(tuples), int(more[1]) if len(more) > 1 else None
    except ValueError:
        count, first = 0, None
    return Entry(position=position.decode(), tuples=count, payload=payload, first=first)


def _nothing(_: Any) -> None:
    pass


def _read_figures(reply: Any) -> InboxFigures:
    run, tuples, size, attempts, seen_ms, oldest_ms, doing_ms, place = reply
    return InboxFigures(
        tuples=tuples,
        bytes=size,
        adopted=run is not None,
        oldest_s=(oldest_ms or 0) / 1000,
        attempts=attempts,
        seen_s=None if seen_ms is None else seen_ms / 1000,
        doing_s=None if doing_ms is None else doing_ms / 1000,
        place=(place or b"").decode(errors="replace"),
    )


def draw_sender(server: InboxServer, last: str) -> Effect[int]:
    """Draw a number of a sender; ``last`` is the key of the last one."""
    return server.script(_source("draw_sender"))([last], [], int, "draw a sender")


@cache
def _source(name: str) -> str:
    if name == _APPEND_WHEN_FULL:
        return _source("append").replace("#!lua\n", "#!lua flags=allow-oom\n", 1)
    return resources.files("tiercel.queues.inbox").joinpath("lua", f"{name}.lua").read_text()
