"""Inboxes in Redis: one stream per bolt task, spread by task over all servers.

The keys of one inbox, ``tiercel:{topology:inbox:TAG}:TASK:…``, share their hash tag with the keys
of neighbouring inboxes and of their part of the line:

    meta       hash     run, attempts, last finished step and ticks, tuples and bytes held,
                        last position taken, last heartbeat
    entries    stream   one entry per chunk: field = its tuples, value = its payload
    senders    hash     sender's task: its attempt, last number, part and digest of the last parcel;
                        "forgotten": the highest drawn sender that was forgotten
    progress   hash     position: the done rows of an entry as a bitmap in hex, or in a line the
                        number of claimed tuples; "sealed": see ``encode``
    snapshots  hash     "kept": of the last finished step; "sealed": of the sealed step;
                        "left …": of earlier runs
    wake       list     not empty while there may be entries that no ``take`` has returned

Each server also has the set ``{topology}:inboxes`` of the tasks whose inboxes are on it, so
that the inboxes of an earlier version of the topology, or of an earlier list of servers, are found
and drained. The first server has ``{topology}:sender``, the last drawn number of a sender. Each
script is in lua/ and is called from one place here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote
from zlib import crc32

from tiercel.acker.effects import Effect, Following, perform_all
from tiercel.acker.errors import RedisUnavailableError
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
    Inboxes,
    InboxFigures,
    Opened,
    Rest,
    Sender,
    decode,
    drawn_sender,
    encode,
    is_drawn,
    joined_figures,
    lost,
    name_of,
    stale,
    superseded,
    text_of,
    unfinished,
    unsealed,
    windows_in,
)
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.redis.scripts import (
    RedisEffect,
    RedisScript,
    RedisServer,
    RedisServers,
    script_source,
)

# Between a server's number and a position, for an inbox on a server that is no longer its own.
_ELSEWHERE = "@"
_DRAINED_AT_ONCE = 16
# Number of consecutive tasks that share a part of a line: their inboxes are on one server, or in a
# cluster have one of _TAGS hash tags.
_NEIGHBOURS, _TAGS = 4, 64
_PACKAGE = "tiercel.acker.inbox"
_APPENDED = (Appended.STALE, Appended.DONE, Appended.REPEATED, Appended.DIFFERENT, Appended.FULL)
_APPEND_WHEN_FULL = "append when full"
_SEALED = b"sealed"
T = TypeVar("T")
Place = tuple[int, int]  # the number of a server, and a task


class RedisInboxes:
    """``Inboxes`` on one or several Redis servers. Owns ``servers``, and closes them."""

    def __init__(self, servers: RedisServers, topology: str, bounds: Bounds | None = None) -> None:
        self._servers = servers
        self._bounds = bounds or Bounds()
        self._name = quote(topology, safe="")
        self._boxes: dict[Place, _Box] = {}
        # The part from which each task takes, by line and task.
        self._lines: dict[int, dict[int, int]] = {}

    # -- the driver -------------------------------------------------------------------------------

    def adopt(self, run: str, tasks: Sequence[int]) -> None:
        def is_kept(reply: int) -> bool:
            if reply == 2:
                raise superseded(run)
            return bool(reply)

        wanted = {*self._homes(one for task in tasks for one in self._parts(task))}
        found = {*self._places()}
        # Add new inboxes to the set first: an inbox that is not in the set is never drained.
        self._change_index("SADD", wanted - found)
        places = sorted(wanted | found)

        def adopting(box: _Box, at: Place) -> Effect[bool]:
            return box.call("adopt", box.all_keys, (run, int(at in wanted)), is_kept, "adopt")

        kept = zip(places, self._each(places, adopting), strict=True)
        self._change_index("SREM", [place for place, stays in kept if not stays])

    def drain(self, run: str, only: Sequence[int] | None = None) -> list[tuple[int, list[Entry]]]:
        chosen = self._homes(part for one in only or () for part in self._parts(one))
        places = self._places() if only is None else chosen
        drained = []
        size = 0
        # Drain a few inboxes at once, to bound the memory used.
        while places and size < DRAINED_BYTES:
            group = places[:_DRAINED_AT_ONCE]
            del places[:_DRAINED_AT_ONCE]
            for place, entries in zip(group, self._each(group, self._draining(run)), strict=True):
                if entries:
                    drained.append((place[1], self._marked(place, entries)))
                    size += sum(len(entry.payload) for entry in entries)
        return drained

    def discard(self, run: str, task: int, positions: Sequence[str]) -> None:
        there: dict[Place, list[str]] = {}
        for position in positions:
            number, _, own = position.rpartition(_ELSEWHERE)
            there.setdefault((int(number) if number else self._home(task), task), []).append(own)
        self._each(
            list(there),
            lambda box, place: box.call(
                "discard", box.claimed, (run, *there[place]), box.check, "discard entries of"
            ),
        )

    def snapshots(self, run: str) -> list[tuple[int, bytes]]:
        places = self._places()
        found = self._each(
            places,
            lambda box, _: box.call(
                "snapshots", (box.meta, box.snapshots), (run,), box.found, "look for snapshots in"
            ),
        )
        return [(place[1], one) for place, ones in zip(places, found, strict=True) for one in ones]

    def forget_snapshot(self, run: str, task: int) -> None:
        self._each(
            [place for place in self._places() if place[1] == task],
            lambda box, _: box.call(
                "forget", (box.meta, box.snapshots), (run,), box.check, "forget snapshots in"
            ),
        )

    def figures(self, tasks: Sequence[int], *, extra: bool = False) -> dict[int, InboxFigures]:
        further = [task for _, task in self._places() if is_extra(task)] if extra else ()
        parts = {task: self._parts(task) for task in (*tasks, *further)}
        homes = self._homes(part for each in parts.values() for part in each)
        replies = self._each(
            homes,
            lambda box, _: box.call("figures", (box.meta, box.entries), (), _figures, "look at"),
        )
        found = dict(zip(homes, replies, strict=True))
        return {
            task: joined_figures([found[home] for home in self._homes(each)])
            for task, each in parts.items()
        }

    def leave(self, run: str, tasks: Sequence[int]) -> None:
        self._each(
            self._homes(tasks),
            lambda box, _: box.call("leave", (box.meta,), (run,), bool, "ask to leave"),
        )

    # -- a process that runs bolt tasks -----------------------------------------------------------

    def draw(self, run: str, task: int) -> int:
        box = self._of(task)
        return int(box.call("draw", (box.meta,), (run,), box.found, "draw a number at").perform())

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        args = (run, sender.task, sender.attempt)
        fenced = self._each(
            self._homes(part for target in targets for part in self._parts(target)),
            lambda box, _: box.call(
                "fence", (box.meta, box.senders), args, bool, "fence a sender at"
            ),
        )
        if not all(fenced):
            raise stale(sender.task)

    def open(self, run: str, task: int, attempt: int, line: int | None = None) -> RedisInbox:
        if line is None:
            return RedisInbox(self._of(task), run, attempt, None)
        shared = self._shared(line)
        part = shared[task_of(task)]
        found = _Line(
            part=self._of(part),
            returned=self._of(returned_to(part)),
            tasks=list(shared.values()).count(part),
        )
        return RedisInbox(self._of(task), run, attempt, found)

    def beat(
        self,
        run: str,
        attempts: Mapping[int, int],
        doing_s: Mapping[int, float],
        place: str,
        held: Mapping[int, Holdings] | None = None,
    ) -> Heard:
        def beating(box: _Box, home: Place) -> Effect[int]:
            task = home[1]
            doing_ms = int(doing_s[task] * 1000) if task in doing_s else -1
            own = (held or {}).get(task, NOTHING_HELD)
            args = (run, attempts[task], doing_ms, place, own.retrying, text_of(own.windows))
            return box.call("beat", (box.meta,), args, int, "say that a process attends")

        replies = dict(zip(attempts, self._each(self._homes(attempts), beating), strict=True))
        return Heard(
            stale=[task for task, reply in replies.items() if not reply],
            leaving=[task for task, reply in replies.items() if reply == 2],
        )

    # -- senders ----------------------------------------------------------------------------------

    def draw_sender(self) -> Sender:
        key = f"tiercel:{{{self._name}}}:sender"
        script = self._servers.at(0, key).script(script_source("draw_sender", package=_PACKAGE))
        return drawn_sender(script([key], [], int, "draw a sender").perform())

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        check_append(number, parcels)
        return [self._appending(run, sender, number, parcel) for parcel in parcels]

    def lacks(self, sender: Sender, number: int, parcel: Parcel) -> Effect[bool]:
        box = self._of(self._receiver(parcel.target, sender, number))
        return box.call(
            "lacks", (box.senders,), (sender.task, number, parcel.part), bool, "look at"
        )

    def has_room(self, run: str, sender: Sender, number: int, parcel: Parcel) -> Effect[bool]:
        box = self._of(self._receiver(parcel.target, sender, number))
        most = (self._bounds.tuples, self._bounds.bytes) if parcel.bounded else (-1, -1)
        args = (run, sender.task, sender.attempt, *most, sum(parcel.tuples), parcel.bytes)
        return box.call("room", (box.meta, box.entries, box.senders), args, bool, "look at")

    def close(self) -> None:
        self._servers.close()

    # -- calls to several inboxes -----------------------------------------------------------------

    def _draining(self, run: str) -> Callable[[_Box, Place], Effect[list[Entry]]]:
        args = (run, DRAINED_TUPLES, DRAINED_BYTES)
        return lambda box, _: box.call(
            "drain", (box.meta, box.entries), args, box.entries_in, "drain"
        )

    def _appending(self, run: str, sender: Sender, number: int, parcel: Parcel) -> Effect[Appended]:
        most = (self._bounds.tuples, self._bounds.bytes) if parcel.bounded else (-1, -1)
        first = (run, sender.task, sender.attempt, number, parcel.part, parcel.digest)
        rest: list[Any] = [self._bounds.senders]
        for tuples, chunk in zip(parcel.tuples, parcel.chunks, strict=True):
            rest += (tuples, chunk)
        box = self._of(self._receiver(parcel.target, sender, number))
        keys = (box.meta, box.entries, box.senders, box.wake)
        read, verb = _APPENDED.__getitem__, "append to"
        appending = box.call("append", keys, (*first, *most, *rest), read, verb)
        if is_drawn(sender):
            return appending
        # A full server takes a bolt's output into an empty inbox, so that tuples in flight finish.
        return replace(
            appending,
            when_full=lambda: box.call(_APPEND_WHEN_FULL, keys, (*first, 0, 0, *rest), read, verb),
        )

    def _each(
        self, places: Sequence[Place], prepare: Callable[[_Box, Place], Effect[T]]
    ) -> list[T]:
        """Make one call per inbox, one round trip per server; returns the replies in order."""
        return perform_all([prepare(self._at(place), place) for place in places])

    # -- where inboxes are ------------------------------------------------------------------------

    def _home(self, task: int) -> int:
        return task_of(task) // _NEIGHBOURS % len(self._servers)

    def _homes(self, tasks: Iterable[int]) -> list[Place]:
        return [(self._home(task), task) for task in tasks]

    def _of(self, task: int) -> _Box:
        return self._at((self._home(task), task))

    def _at(self, place: Place) -> _Box:
        box = self._boxes.get(place)
        if box is None:
            number, task = place
            tag = task_of(task) // _NEIGHBOURS % _TAGS
            prefix = f"tiercel:{{{self._name}:inbox:{tag}}}:{task}:"
            box = self._boxes.setdefault(
                place, _Box(self._servers.at(number, prefix), prefix, task)
            )
        return box

    def _shared(self, line: int) -> dict[int, int]:
        """Return the part of a line from which each task takes, by task."""
        found = self._lines.get(line)
        if found is None:
            lowest: dict[RedisServer, int] = {}
            found = self._lines[line] = {
                task: part_of_line(lowest.setdefault(self._of(task).server, task))
                for task in tasks_of(line)
            }
        return found

    def _parts(self, target: int) -> list[int]:
        """Return the ids of the inboxes that make up a line, in order; for a task, its own."""
        if not is_line(target):
            return [target]
        parts = dict.fromkeys(self._shared(target).values())
        return [one for part in parts for one in (part, returned_to(part))]

    def _receiver(self, target: int, sender: Sender, number: int) -> int:
        """Return the inbox for a parcel; in a line, the part that sender and number choose."""
        if not is_line(target):
            return target
        shared = self._shared(target)
        turn = crc32(b"%d %d" % (sender.task, number)) % len(shared)
        return shared[task_of(target) + turn]

    def _places(self) -> list[Place]:
        """Return the places of all inboxes, including tasks that the topology no longer has."""
        found = (self._index(number, "SMEMBERS") for number in range(len(self._servers)))
        return sorted((number, int(task)) for number, tasks in enumerate(found) for task in tasks)

    def _change_index(self, command: str, places: Collection[Place]) -> None:
        for server in {number for number, _ in places}:
            self._index(server, command, *(task for number, task in places if number == server))

    def _index(self, number: int, command: str, *tasks: int) -> Any:
        key = f"tiercel:{{{self._name}}}:inboxes"
        server = self._servers.at(number, key)
        return server.command(command, key, *tasks, verb="look for inboxes").perform()

    def _marked(self, place: Place, entries: list[Entry]) -> list[Entry]:
        number, task = place
        if number == self._home(task):
            return entries
        return [
            replace(entry, position=f"{number}{_ELSEWHERE}{entry.position}") for entry in entries
        ]


class RedisInbox:
    """``Inbox`` in a Redis stream."""

    def __init__(self, box: _Box, run: str, attempt: int, line: _Line | None) -> None:
        """Open the inbox; raises StaleAttemptError."""
        self._box = box
        self._line = line
        self._attempt = (run, attempt)
        keys = (box.meta, box.progress, box.wake, box.snapshots)
        self.opened: Opened = box.call("open", keys, self._attempt, box.opened, "open").perform()
        self._after = "0-0"
        self._finished = self.opened.step
        # True if there is a wake-up wherever there are entries that no ``take`` has returned.
        self._looked = False
        self._woken = threading.Event()

    def take(  # noqa: PLR0913 - see ``Inbox``
        self, tuples: int, size: int, wait: timedelta, finishing: int | None, claims: Claims,
        *, then: Following[Any] | None = None,
    ) -> list[Entry]:  # fmt: skip
        left_s = wait.total_seconds()
        until = time.monotonic() + left_s
        while True:
            entries = self._look((tuples, size), left_s, finishing, claims, then)
            left_s = until - time.monotonic() if wait else 0.0
            if entries or left_s <= 0 or self._woken.is_set():
                # The caller looks at the reason for a wake-up only after this returns, so the
                # wake-up is not lost, even if it came after the entries.
                self._woken.clear()
                self._after = entries[-1].position if entries else self._after
                return entries

    def _look(
        self, most: tuple[int, int], wait_s: float, finishing: int | None, claims: Claims,
        then: Following[Any] | None,
    ) -> list[Entry]:  # fmt: skip
        """Take entries, after a wait for a wake-up if there were none left."""
        box, line = self._box, self._line if any(claims) else None
        keys: tuple[str, ...] = (box.meta, box.entries, box.wake)
        wakes, tasks = [box.wake], 1
        if line is not None:
            tasks = line.tasks
            keys += (line.part.wake, *line.returned.claimed, *line.part.claimed)
            wakes.append(line.part.wake)
        # A stale attempt's finish does nothing, and its take raises.
        calls: list[RedisEffect[Any]] = [] if finishing is None else [self.finish(finishing)]
        args = (*self._attempt, self._after, *most, *claims, tasks, self._finished)
        taking = box.call("take", keys, args, box.entries_in, "take from")
        if then is not None:
            taking = box.server.followed(taking, then)
        if wait_s > 0 and self._looked and not self._woken.is_set():
            waiting = box.server.wait(wakes, timedelta(seconds=wait_s), box.verb("wait at"))
            # If the connection breaks, the wake-up may be lost: look at once.
            with suppress(RedisUnavailableError):
                found: list[Entry] = box.server.perform_waiting([*calls, waiting, taking])[-1]
                return found
        self._looked = False
        entries: list[Entry] = box.server.perform([*calls, taking])[-1]
        self._looked = True
        return entries

    def read(self, positions: Sequence[str]) -> list[Entry]:
        box = self._box
        args = (*self._attempt, *positions)
        return box.call("read", (box.meta, box.entries), args, box.entries_in, "read").perform()

    def seal(self, covered: Covered, snapshot: bytes | None = None) -> Effect[bool]:
        box = self._box
        args = [*self._attempt, covered.step, encode(covered), self._finished, self._after]
        if snapshot is not None:
            args.append(snapshot)
        keys = (box.meta, box.progress, box.snapshots)
        read = partial(_is_done, partial(unfinished, covered.step))
        return box.call("seal", keys, args, read, "seal a step of")

    def finish(self, step: int) -> RedisEffect[bool]:
        box = self._box
        keys = (box.meta, box.entries, box.progress, box.snapshots)
        read = partial(self._has_finished, step)
        return box.call("finish", keys, (*self._attempt, step), read, "finish a step of")

    def _has_finished(self, step: int, reply: int) -> bool:
        done = _is_done(partial(unsealed, step), reply)
        self._finished = max(self._finished, step if done else 0)
        return done

    def give_back(self, rests: Sequence[Rest]) -> Effect[bool]:
        box, line = self._box, self._line
        if line is None:
            raise ValueError("nothing was claimed: there is no line")
        args: list[Any] = [*self._attempt]
        for rest in rests:
            args += (rest.position, rest.first, rest.done.hex())
        returned = (line.returned.meta, line.returned.entries)
        keys = (box.meta, box.entries, box.progress, line.part.wake, *returned)
        return box.call("give_back", keys, args, bool, "give back from")

    def wake(self) -> None:
        self._woken.set()
        box = self._box
        box.server.command("RPUSH", box.wake, "", verb=box.verb("wake")).perform()

    def close(self) -> None:
        pass


class _Box:
    """One inbox on one server, or a part of a line: its keys, its scripts and their replies."""

    def __init__(self, server: RedisServer, prefix: str, task: int) -> None:
        """``prefix`` has the same hash tag as the task's part of the line."""
        self.server = server
        self.meta = f"{prefix}meta"
        self.entries = f"{prefix}entries"
        self.senders = f"{prefix}senders"
        self.progress = f"{prefix}progress"
        self.wake = f"{prefix}wake"
        self.snapshots = f"{prefix}snapshots"
        # The keys of a line that a claim changes.
        self.claimed = (self.meta, self.entries, self.progress)
        self.all_keys = (*self.claimed[:2], self.senders, self.progress, self.wake, self.snapshots)
        self._task = task
        self._scripts: dict[str, RedisScript] = {}
        self._verbs: dict[str, str] = {}

    def call(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        read: Callable[[Any], T],
        verb: str,
    ) -> RedisEffect[T]:
        """Prepare a call of the script lua/NAME.lua."""
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.server.script(_source(name))
        return script(keys, args, read, self.verb(verb))

    def verb(self, verb: str) -> str:
        """Return the verb with this inbox as its object, for messages."""
        found = self._verbs.get(verb)
        if found is None:
            found = self._verbs[verb] = f"{verb} the inbox of {name_of(self._task)}"
        return found

    def check(self, reply: Any) -> None:
        """Raise StaleAttemptError if the script refused the caller."""
        if not reply:
            raise stale(self._task)

    def found(self, reply: Any) -> Any:
        """Return the reply; raise StaleAttemptError if it is None."""
        self.check(reply is not None)
        return reply

    def entries_in(self, reply: Any) -> list[Entry]:
        """Read entries; raises StaleAttemptError, StepOrderError."""
        if reply == 2:
            raise lost()
        return [_entry(position, *fields) for position, fields in self.found(reply)]

    def opened(self, reply: Any) -> Opened:
        """Read the state of an opened inbox; raises StaleAttemptError."""
        self.check(reply)
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
class _Line:
    """The part of a task's line on the server of the task's inbox."""

    part: _Box
    # The tuples that tasks gave back, which are claimed before the part's own.
    returned: _Box
    # Number of tasks that share the part.
    tasks: int


def _is_done(misused: Callable[[], Exception], reply: int) -> bool:
    if reply > 1:
        raise misused() if reply == 2 else lost()
    return bool(reply)


def _source(name: str) -> str:
    if name == _APPEND_WHEN_FULL:
        return _source("append").replace("#!lua\n", "#!lua flags=allow-oom\n", 1)
    return script_source(name, package=_PACKAGE)


def _entry(position: bytes, tuples: bytes | int, payload: bytes, *more: bytes) -> Entry:
    """Make an entry; a malformed one, written by another program, counts 0 tuples."""
    try:
        count, first = int(tuples), int(more[1]) if len(more) > 1 else None
    except ValueError:
        count, first = 0, None
    return Entry(position=position.decode(), tuples=count, payload=payload, first=first)


def _figures(reply: Any) -> InboxFigures:
    run, tuples, size, attempts, seen_ms, oldest_ms, doing_ms, place, retrying, windows = reply
    return InboxFigures(
        tuples=tuples,
        bytes=size,
        adopted=run is not None,
        oldest_s=(oldest_ms or 0) / 1000,
        attempts=attempts,
        seen_s=None if seen_ms is None else seen_ms / 1000,
        doing_s=None if doing_ms is None else doing_ms / 1000,
        place=(place or b"").decode(errors="replace"),
        retrying=retrying,
        windows=windows_in(windows),
    )


def open_inboxes(spec: LedgerSpec) -> Inboxes:
    """Make the inboxes, spread by task over all servers. Connects on the first call."""
    return RedisInboxes(RedisServers(spec.urls), spec.topology)
