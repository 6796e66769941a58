"""Reads the figures that a topology's processes left in Redis, the depths of its queues, and their
dead letters.

The views have no other source.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tiercel.acker.errors import AckerError, RedisUnavailableError
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.layout import shard_prefix
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import Counts, ErrorReport, KnownError, Window
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect, is_full
from tiercel.acker.redis.scripts import RedisServers
from tiercel.acker.redis_ledger import open_ledger
from tiercel.queues.broker.depths import DepthReader, QueueDepth, require
from tiercel.queues.errors import QueuesError
from tiercel.queues.publishing import dead_letters
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.workers.control.presence import Lease, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry, TopologyNote
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.health import NOT_RUNNING
from tiercel.workers.monitoring.overview import SINK, SOURCE, Overview, Own, QueueRow, overview_of
from tiercel.workers.monitoring.rows import Readings

# Letters per queue, the oldest. Their bodies are kept, at most 64 KiB of each.
SHOWN = 50
PAUSE_S = 5.0
Show = Callable[[str, int], Sequence[DeadLetter]]
log = logging.getLogger(__name__)
# Errors that are read at once; views group them by reason.
ERRORS_SHOWN = 200
_CENSUS_SHARE = 20
_SPAN_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Addresses of the servers to read. They may hold passwords."""

    redis_urls: tuple[str, ...]
    amqp_url: str | None = None
    management_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """State at one moment. For a server that did not answer, its last answer."""

    at: datetime
    topologies: tuple[str, ...] = ()
    # None: there is no such topology, or Redis has never answered.
    overview: Overview | None = None
    redis_problem: str | None = None
    rabbitmq_problem: str | None = None
    # Redis answers, but the data of this topology in it cannot be read.
    unreadable: bool = False
    # Redis answers, and takes in nothing new.
    redis_full: str | None = None

    @property
    def problems(self) -> list[str]:
        """The problems of the servers, as text for people."""
        found = (self.redis_problem, self.redis_full, self.rabbitmq_problem)
        return [problem for problem in found if problem]


class Watcher:
    """Reads topologies again and again. Thread-safe.

    A server that is away is reported and never raised.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._registry = Registry(addresses.redis_urls[0])
        self._readers: dict[str, TopologyReader] = {}
        self._lock = threading.Lock()
        self._known: dict[str, TopologyNote] = {}
        self._last: dict[tuple[str, Window], Overview] = {}
        self._said: dict[str, str] = {}
        self._depths: dict[str, tuple[QueueDepth, ...]] = {}
        self._depth_reader = DepthReader(addresses.amqp_url or "", addresses.management_url)

    def look(self, name: str | None, window: Window) -> Look:
        """Read a topology, by default one that runs; returns within the clients' timeouts."""
        with self._lock:
            return self._look(name, window)

    def all(self) -> tuple[dict[str, Overview], dict[str, bool]]:
        """Return every topology over all time, and which servers answer.

        While Redis does not answer there are no topologies.
        """
        with self._lock:
            if self._refresh() is not None:
                return {}, {"redis": False}
            looks = [self._look(name, Window.ALL_TIME) for name in self._known]
            up = {"redis": not any(look.redis_problem and not look.unreadable for look in looks)}
            if self._addresses.amqp_url and looks:
                up["rabbitmq"] = not any(look.rabbitmq_problem for look in looks)
            readable = [
                look.overview for look in looks if look.overview is not None and not look.unreadable
            ]
            return {overview.name: overview for overview in readable}, up

    def close(self) -> None:
        """Release the connections; waits for a reading that is under way. Idempotent."""
        with self._lock:
            self._registry.close()
            for reader in self._readers.values():
                reader.close()
            self._depth_reader.close()

    def _look(self, name: str | None, window: Window) -> Look:
        problem = self._refresh()
        found = full = None
        unreadable = False
        chosen = name if name is not None else self._first(window, away=problem is not None)
        if chosen is not None and chosen in self._known:
            if problem is None:
                problem, unreadable = self._read(chosen, window)
            found = self._last.get((chosen, window))
            full = self._full(chosen) if problem is None else None
        rabbitmq_problem = None
        if found is not None and self._addresses.amqp_url:
            rabbitmq_problem = self._survey(chosen or "")
            read = self._known[found.name].graph.queues
            depths = self._depths.get(found.name, ())
            found = replace(
                found,
                queues=tuple(each for each in depths if each.name in read),
                sinks=tuple(each for each in depths if each.name not in read),
            )
        return Look(
            at=datetime.now(UTC),
            topologies=tuple(self._known),
            overview=found,
            redis_problem=problem,
            rabbitmq_problem=rabbitmq_problem,
            redis_full=full,
            unreadable=unreadable,
        )

    def _first(self, window: Window, *, away: bool) -> str | None:
        """Return a topology that ran at the last reading, else the first one."""
        for name in self._known:
            if (name, window) not in self._last and not away:
                problem, unreadable = self._read(name, window)
                away = problem is not None and not unreadable
            seen = self._last.get((name, window))
            if seen is not None and seen.state != NOT_RUNNING:
                return name
        return next(iter(self._known), None)

    def _refresh(self) -> str | None:
        """Look up the topologies; return Redis's problem, if it has one."""
        try:
            self._known = self._registry.topologies()
        except AckerError as error:
            return redact(str(error))
        return None

    def _read(self, name: str, window: Window) -> tuple[str | None, bool]:
        """Read a topology; return the problem, and True if only this topology has it."""
        note = self._known[name]
        reader = self._readers.get(name)
        if reader is None or reader.note != note:
            if reader is not None:
                reader.close()
            reader = self._readers[name] = TopologyReader(self._addresses.redis_urls, note)
        try:
            self._last[name, window] = reader.read(window)
        except RedisUnavailableError as error:
            return redact(str(error)), False
        except (AckerError, ValueError, TypeError, LookupError) as error:
            # Written by another version, or a stranger: the other topologies must still be shown.
            said = (
                f"cannot read what {name} keeps in Redis: "
                f"{redact(str(error))[:200] or type(error).__name__}"
            )
            if self._said.get(name) != said:
                self._said[name] = said
                log.warning(
                    "%s; its figures are missing", said, extra={"event": "unreadable_in_redis"}
                )
            return said, True
        return None, False

    def _full(self, name: str) -> str | None:
        try:
            return self._readers[name].full()
        except AckerError:  # the next look says so
            return None

    def _survey(self, name: str) -> str | None:
        graph = self._known[name].graph
        try:
            self._depths[name] = tuple(self._depth_reader.look([*graph.queues, *graph.sinks]))
        except QueuesError as error:
            return redact(str(error))
        return None


class TopologyReader:
    """Reads everything in Redis about one topology. Raises AckerError."""

    def __init__(self, redis_urls: tuple[str, ...], note: TopologyNote) -> None:
        self.note = note
        self.metrics = RedisMetrics(redis_urls[0], note.name)
        self._control = RedisControl(redis_urls[0], note.name)
        presences = RedisPresences(redis_urls[0], note.name)
        self._lease = Lease(presences)
        self._spout_seats = SpoutSeats(presences)
        prefixes = (shard_prefix(note.name, shard) for shard in range(len(redis_urls)))
        self._clients = [connect(*each) for each in zip(redis_urls, prefixes, strict=True)]
        self._inboxes = RedisInboxes(RedisServers(redis_urls), note.name)
        self._ledger = open_ledger(note.ledger_spec(redis_urls))
        self._states = RedisStateStore(note.ledger_spec(redis_urls), run_number=0)
        self._meter = RateMeter()
        self._census: Census | None = None
        self._census_at = 0.0
        self._newest: ErrorReport | None = None
        self._known: Sequence[KnownError] = ()

    def read(self, window: Window, errors: int = ERRORS_SHOWN) -> Overview:
        """Return the topology, without its queues."""
        counted = self.metrics.over(window)
        totals = counted.counts if window is Window.ALL_TIME else self.metrics.totals()
        note = self.note
        holder = self._lease.holder()
        reports = self.metrics.errors(errors)
        readings = Readings(
            graph=note.graph,
            counted=counted,
            present=self._spout_seats.present(range(1, note.spout_tasks + 1)),
            state=self._control.state(),
            driver=holder is not None,
            driver_at=holder.whereabouts if holder else None,
            trouble=redact(holder.trouble) if holder else "",
            inboxes=self._inboxes.figures(note.graph.inboxes),
            census=self._look_at_ledger(),
            errors=[replace(error, message=redact(error.message)) for error in reports],
            marks=self._states.marks([each.name for each in note.graph.bolts]),
            known_errors=self._look_at_traces(reports),
            message_timeout_s=note.message_timeout_secs,
            rates=self._meter.look(time.monotonic(), totals),
        )
        return overview_of(note.name, readings)

    def full(self) -> str | None:
        """Return what to do about a server whose memory is full; None if none is."""
        if not any(map(is_full, self._clients)):
            return None
        return (
            "Redis is full: raise its maxmemory or free memory; messages in flight are finished, "
            "and no new ones are taken until then"
        )

    def close(self) -> None:
        """Release the connections. Idempotent."""
        for each in (
            self.metrics, self._control, self._lease, self._inboxes, self._ledger, self._states,
        ):  # fmt: skip
            each.close()
        for client in self._clients:
            client.close()

    def _look_at_traces(self, reports: Sequence[ErrorReport]) -> Sequence[KnownError]:
        """Return the kinds of errors that have a traceback, read again when there is a new error.

        Unreadable tracebacks must not hide the rest of the topology: without them, only the errors
        that are kept are counted.
        """
        newest = reports[0] if reports else None
        if newest != self._newest:
            try:
                self._known = self.metrics.traces()
            except (ValueError, TypeError, LookupError):
                self._known = ()
            self._newest = newest
        return self._known

    def _look_at_ledger(self) -> Census:
        """Take a census for at most a twentieth of the time: it scans all keys of the server, also
        those of other users.
        """
        began = time.monotonic()
        if self._census is None or began >= self._census_at:
            self._census = self._ledger.census()
            ended = time.monotonic()
            self._census_at = ended + _CENSUS_SHARE * (ended - began)
        return self._census


class RateMeter:
    """Computes rates over the last ten seconds. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Counts]] = deque()

    def look(self, now: float, totals: Counts) -> Counts:
        """Return the counts per thousand seconds at this rate; nothing at the first call.

        Counters that go backwards were lost with their Redis, so the meter starts again.
        """
        if self._looks and _shrank(self._looks[-1][1], totals):
            self._looks.clear()
        self._looks.append((now, totals))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _SPAN_S:
            self._looks.popleft()
        since, before = self._looks[0]
        if now <= since:
            return {}
        return {
            component: {
                task: {
                    name: round(
                        1000
                        * (count - before.get(component, {}).get(task, {}).get(name, 0))
                        / (now - since)
                    )
                    for name, count in counts.items()
                }
                for task, counts in tasks.items()
            }
            for component, tasks in totals.items()
        }


def _shrank(before: Counts, totals: Counts) -> bool:
    return any(
        count > totals.get(component, {}).get(task, {}).get(name, 0)
        for component, tasks in before.items()
        for task, counts in tasks.items()
        for name, count in counts.items()
    )


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The content of ``tiercel depths``: RabbitMQ's queues, and tiercel's own in Redis."""

    queues: Sequence[QueueRow]
    # One per topology that the queues belong to.
    own: Sequence[Own]
    # Some figures are RabbitMQ's statistics, which are a few seconds old.
    lags: bool


class Surveyor:
    """Takes surveys."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._reader = DepthReader(addresses.amqp_url or "", addresses.management_url)

    def take(self, names: Sequence[str]) -> Survey:
        """Read these queues, or without names the queues of all topologies that ran.

        Raises UsageError if no topology ran, QueueMissingError for a name without a queue,
        AckerError, QueuesError.
        """
        addresses = self._addresses
        owners, topologies = _known(addresses.redis_urls)
        if not names and not owners:
            raise UsageError(
                "no topology has run here yet: name the queues, tiercel depths QUEUE ..."
            )
        sinks = {queue: note.name for note in topologies.values() for queue in note.graph.sinks}
        uses = {**dict.fromkeys(sinks, SINK), **dict.fromkeys(owners, SOURCE)}
        found = self._reader.look(names or list(dict.fromkeys([*owners, *sinks])))
        require(addresses.amqp_url or "", names, found)
        known = {**sinks, **owners}
        chosen = {known[name] for name in names if name in known}
        notes = [note for name, note in topologies.items() if not names or name in chosen]
        return Survey(
            queues=[QueueRow(depth=depth, use=uses.get(depth.name, "")) for depth in found],
            own=[_own_of(addresses.redis_urls, note) for note in notes],
            lags=any(depth.unacked is not None for depth in found),
        )

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._reader.close()


def _known(redis_urls: tuple[str, ...]) -> tuple[Mapping[str, str], Mapping[str, TopologyNote]]:
    """Return the topology of each queue, and the topologies; both empty without a Redis."""
    if not redis_urls:
        return {}, {}
    with closing(Registry(redis_urls[0])) as registry:
        return registry.queues(), registry.topologies()


def _own_of(redis_urls: tuple[str, ...], note: TopologyNote) -> Own:
    with closing(TopologyReader(redis_urls, note)) as reader:
        return reader.read(Window.ALL_TIME).own


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The oldest dead letters of one queue."""

    letters: Sequence[DeadLetter] = ()
    # RabbitMQ's answer, if it refused.
    problem: str | None = None


NOTHING_LISTED = Listing()


@dataclass(slots=True)
class _Place:
    found: Listing
    # Number of letters, by the depths, at the time of reading.
    depth: int
    looked_at: float


class DeadLetterCache:
    """The dead letters of all queues, as they were last read, for any number of pages. Thread-safe.

    RabbitMQ counts each reading as a delivery, and before 4.3 moves a letter after three of them.
    So a queue is read again only when the number of its letters has changed.
    """

    def __init__(
        self, amqp_url: str, show: Show | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show or (lambda queue, limit: dead_letters.show(amqp_url, queue, limit))
        self._clock = clock
        self._looking = threading.Lock()
        self._places: dict[str, _Place] = {}

    def listed(self, queue: str, depth: int | None) -> Listing:
        """Return the letters of a queue that has ``depth`` of them now; None: unknown.

        Reads the queue at most once per five seconds, and only if the number has changed.
        """
        with self._looking:
            place = self._places.get(queue)
            if depth is None or (place is None and not depth):
                return NOTHING_LISTED
            if place is None or self._is_old(place, depth):
                place = self._look(queue, depth)
            return place.found

    def look(self, queue: str) -> Sequence[DeadLetter]:
        """Read the queue now. Raises QueuesError."""
        with self._looking:
            letters = self._show(queue, SHOWN)
            self._keep(queue, Listing(letters=letters), len(letters))
            return letters

    def _is_old(self, place: _Place, depth: int) -> bool:
        if len(place.found.letters) >= SHOWN:
            # More letters, behind the oldest, would not be shown anyway.
            place.depth = max(depth, place.depth)
        if self._clock() < place.looked_at + PAUSE_S:
            return False
        return place.found.problem is not None or depth != place.depth

    def _look(self, queue: str, depth: int) -> _Place:
        try:
            found = Listing(letters=self._show(queue, SHOWN))
        except QueuesError as error:
            found = Listing(problem=redact(str(error)))
        return self._keep(queue, found, depth)

    def _keep(self, queue: str, found: Listing, depth: int) -> _Place:
        place = _Place(found, depth, self._clock())
        self._places[queue] = place
        return place
