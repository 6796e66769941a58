"""Inboxes in Redis: one stream per bolt task, spread by task over all servers.

Keys of one inbox, ``tiercel:{topology:inbox:TAG}:TASK:…``, share their hash tag with those of
neighbours, and of their part of the line:

    meta       hash     run, attempts, last finished step and ticks, tuples and bytes held,
                        last taken, seen
    entries    stream   one entry per chunk: field = its tuples, value = its payload
    senders    hash     sender's task: its attempt, last number, part and digest of the last parcel;
                        "forgotten": the highest drawn sender that was forgotten
    progress   hash     position: bitmap in hex of what is done of the entry, of a line's
                        the number of tuples that were claimed; "sealed": see ``covered``
    snapshots  hash     "kept" of the last finished step, "sealed", and what earlier runs left
    wake       list     holds something while entries came that were not looked for

Each server also has the set ``{topology}:inboxes`` of the tasks whose inboxes are there, so
that the inboxes of an earlier shape of the topology, or of an earlier list of servers, are
found and drained. The first one has ``{topology}:sender``: the last number that was drawn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import quote
from zlib import crc32

from tiercel.queues.inbox.contract import Effect
from tiercel.queues.inbox.records import (
    NO_CALLS,
    NO_CLAIMS,
    Appended,
    Bounds,
    Claims,
    Covered,
    Entry,
    InboxFigures,
    Opened,
    Parcel,
    Rest,
    Sender,
    joined_figures,
)
from tiercel.queues.inbox.rules import (
    DRAINED_BYTES,
    check_append,
    drawn_sender,
    is_line,
    part_of_line,
    returned_to,
    stale,
    task_of,
    tasks_of,
)
from tiercel.queues.inbox.scripts import InboxScripts, Line, draw_sender
from tiercel.queues.inbox.server import InboxServer, InboxServers

# Separates the number of a server from a position, where an inbox lies on a server that is not
# its own any more.
_ELSEWHERE = "@"
_DRAINED_AT_ONCE = 16
# Tasks in a row whose inboxes are on one server, or in a cluster have one of so many hash tags: to
# share a part of a line.
_NEIGHBOURS = 4
_TAGS = 64
T = TypeVar("T")

# Number of a server, and a task.
Place = tuple[int, int]


class RedisInboxes:
    """``Inboxes`` on one or several Redis servers. Takes over ``servers``."""

    def __init__(self, servers: InboxServers, topology: str, bounds: Bounds | None = None) -> None:
        self._servers = servers
        self._bounds = bounds or Bounds()
        self._name = quote(topology, safe="")
        self._boxes: dict[Place, InboxScripts] = {}
        # Of each line the part that each of its tasks takes from.
        self._lines: dict[int, dict[int, int]] = {}

    def adopt(self, run: str, tasks: Sequence[int]) -> None:
        wanted = {(self._home(one), one) for task in tasks for one in self._parts(task)}
        found = set(self._places())
        # Named first: an inbox that the set lacks would never be drained.
        for number, task in sorted(wanted - found):
            self._index(number, "SADD", task)
        places = sorted(wanted | found)
        kept = self._each(places, lambda box, place: box.adopt(run, known=place in wanted))
        for (number, task), is_kept in zip(places, kept, strict=True):
            if not is_kept:
                self._index(number, "SREM", task)

    def drain(self, run: str) -> list[tuple[int, list[Entry]]]:
        places = self._places()
        drained = []
        size = 0
        # Some at once, and no more than memory bears.
        while places and size < DRAINED_BYTES:
            group = places[:_DRAINED_AT_ONCE]
            del places[:_DRAINED_AT_ONCE]
            for place, entries in zip(
                group, self._each(group, lambda box, _: box.drain(run)), strict=True
            ):
                if entries:
                    drained.append((place[1], self._marked(place, entries)))
                    size += sum(len(entry.payload) for entry in entries)
        return drained

    def discard(self, run: str, task: int, positions: Sequence[str]) -> None:
        there: dict[Place, list[str]] = {}
        for position in positions:
            number, _, own = position.rpartition(_ELSEWHERE)
            there.setdefault((int(number) if number else self._home(task), task), []).append(own)
        self._each(list(there), lambda box, place: box.discard(run, there[place]))

    def snapshots(self, run: str) -> list[tuple[int, bytes]]:
        places = self._places()
        found = self._each(places, lambda box, _: box.snapshots(run))
        return [(place[1], one) for place, ones in zip(places, found, strict=True) for one in ones]

    def forget_snapshot(self, run: str, task: int) -> None:
        places = [place for place in self._places() if place[1] == task]
        self._each(places, lambda box, _: box.forget(run))

    def figures(self, tasks: Sequence[int]) -> dict[int, InboxFigures]:
        parts = {task: self._parts(task) for task in tasks}
        homes = self._homes(part for each in parts.values() for part in each)
        found = dict(zip(homes, self._each(homes, lambda box, _: box.figures()), strict=True))
        return {
            task: joined_figures([found[home] for home in self._homes(each)])
            for task, each in parts.items()
        }

    def draw(self, run: str, task: int) -> int:
        return self._of(task).draw(run).perform()

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        # All of them, whatever one says.
        homes = self._homes(part for target in targets for part in self._parts(target))
        if not all(self._each(homes, lambda box, _: box.fence(run, sender))):
            raise stale(sender.task)

    def open(self, run: str, task: int, attempt: int, line: int | None = None) -> RedisInbox:
        if line is None:
            return RedisInbox(self._of(task), run, attempt, None)
        shared = self._shared(line)
        part = shared[task]
        found = Line(
            part=self._of(part),
            returned=self._of(returned_to(part)),
            tasks=list(shared.values()).count(part),
        )
        return RedisInbox(self._of(task), run, attempt, found)

    def beat(
        self,
        run: str,
        attempts: Mapping[int, int],
        doing_s: Mapping[int, float] = NO_CALLS,
        place: str = "",
    ) -> list[int]:
        kept = self._each(
            self._homes(attempts),
            lambda box, home: box.beat(run, attempts[home[1]], doing_s.get(home[1]), place),
        )
        return [task for task, is_kept in zip(attempts, kept, strict=True) if not is_kept]

    def draw_sender(self) -> Sender:
        key = f"tiercel:{{{self._name}}}:sender"
        return drawn_sender(draw_sender(self._servers.at(0, key), key).perform())

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        check_append(number, parcels)
        return [
            self._of(self._receiver(parcel.target, sender, number)).append(
                run, sender, number, parcel, self._bounds
            )
            for parcel in parcels
        ]

    def close(self) -> None:
        self._servers.close()

    def _home(self, task: int) -> int:
        return task_of(task) // _NEIGHBOURS % len(self._servers)

    def _shared(self, line: int) -> dict[int, int]:
        """Return the part of the line that each of its tasks takes from."""
        found = self._lines.get(line)
        if found is None:
            lowest: dict[InboxServer, int] = {}
            found = self._lines[line] = {
                task: part_of_line(lowest.setdefault(self._of(task).server, task))
                for task in tasks_of(line)
            }
        return found

    def _parts(self, target: int) -> list[int]:
        """Return the inboxes that make a line, in their order; of a task, its own."""
        if not is_line(target):
            return [target]
        parts = dict.fromkeys(self._shared(target).values())
        return [one for part in parts for one in (part, returned_to(part))]

    def _receiver(self, target: int, sender: Sender, number: int) -> int:
        """Return where a parcel goes: of a line, the part of a task that its number chooses."""
        if not is_line(target):
            return target
        shared = self._shared(target)
        turn = crc32(b"%d %d" % (sender.task, number)) % len(shared)
        return shared[task_of(target) + turn]

    def _homes(self, tasks: Iterable[int]) -> list[Place]:
        return [(self._home(task), task) for task in tasks]

    def _of(self, task: int) -> InboxScripts:
        return self._at((self._home(task), task))

    def _at(self, place: Place) -> InboxScripts:
        box = self._boxes.get(place)
        if box is None:
            number, task = place
            tag = task_of(task) // _NEIGHBOURS % _TAGS
            prefix = f"tiercel:{{{self._name}:inbox:{tag}}}:{task}:"
            box = self._boxes.setdefault(
                place, InboxScripts(self._servers.at(number, prefix), prefix, task)
            )
        return box

    def _each(
        self, places: Sequence[Place], prepare: Callable[[InboxScripts, Place], Effect[T]]
    ) -> list[T]:
        """Make one call per inbox, those of one server in one round trip.

        Returns the replies in order.
        """
        by_server: dict[InboxServer, dict[Place, Effect[T]]] = {}
        for place in places:
            box = self._at(place)
            by_server.setdefault(box.server, {})[place] = prepare(box, place)
        replies: dict[Place, T] = {}
        for server, effects in by_server.items():
            replies.update(zip(effects, server.perform(list(effects.values())), strict=True))
        return [replies[place] for place in places]

    def _places(self) -> list[Place]:
        """Return where inboxes are, also those of tasks that the topology no longer has."""
        found = (self._index(number, "SMEMBERS") for number in range(len(self._servers)))
        return sorted((number, int(task)) for number, tasks in enumerate(found) for task in tasks)

    def _index(self, number: int, command: str, *tasks: int) -> Any:
        key = f"tiercel:{{{self._name}}}:inboxes"
        server = self._servers.at(number, key)
        return server.command(
            command, key, *tasks, read=_as_it_is, verb="look for inboxes"
        ).perform()

    def _marked(self, place: Place, entries: list[Entry]) -> list[Entry]:
        number, task = place
        if number == self._home(task):
            return entries
        return [
            replace(entry, position=f"{number}{_ELSEWHERE}{entry.position}") for entry in entries
        ]


class RedisInbox:
    """``Inbox`` in a Redis stream."""

    def __init__(self, box: InboxScripts, run: str, attempt: int, line: Line | None) -> None:
        """Opens the inbox, and raises StaleAttemptError."""
        self._box = box
        self._line = line
        self._attempt = (run, attempt)
        self._opened = box.open(run, attempt).perform()
        self._after = "0-0"
        self._woken = threading.Event()

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
        until = time.monotonic() + wait.total_seconds()
        first = [] if finishing is None else [self.finish(finishing)]
        line = self._line if any(claims) else None
        while True:
            # A stale attempt's finish does nothing, and its take raises.
            taking = self._box.take(*self._attempt, self._after, (tuples, size, *claims), line)
            entries: list[Entry] = self._box.server.perform([*first, taking])[-1]
            first = []
            left_s = until - time.monotonic() if wait else 0.0
            if entries or left_s <= 0 or self._woken.is_set():
                # Anything that wakes the caller came before it looks, also if it came
                # after these entries.
                self._woken.clear()
                self._after = entries[-1].position if entries else self._after
                return entries
            self._box.wait(timedelta(seconds=left_s), line)

    def read(self, positions: Sequence[str]) -> list[Entry]:
        return self._box.read(*self._attempt, positions).perform()

    def seal(self, covered: Covered, snapshot: bytes | None = None) -> Effect[bool]:
        return self._box.seal(*self._attempt, covered, snapshot)

    def finish(self, step: int) -> Effect[bool]:
        return self._box.finish(*self._attempt, step)

    def give_back(self, rests: Sequence[Rest]) -> Effect[bool]:
        if self._line is None:
            raise ValueError("nothing was claimed: there is no line")
        return self._box.give_back(*self._attempt, rests, self._line)

    def wake(self) -> None:
        self._woken.set()
        self._box.wake().perform()

    def close(self) -> None:
        pass


def _as_it_is(reply: Any) -> Any:
    return reply
