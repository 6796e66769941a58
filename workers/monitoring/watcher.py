"""Reads the figures that a topology's processes leave in Redis, the depths of its queues, and their
dead letters.

All views get their data here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tiercel.acker.errors import AckerError, RedisUnavailableError
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.layout import shard_prefix
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import (
    STATE_LOST_AT,
    Counts,
    ErrorReport,
    KnownError,
    Window,
    merged,
    total_of,
)
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect, is_full, place_of
from tiercel.acker.redis.scripts import RedisServers
from tiercel.acker.redis_ledger import open_ledger
from tiercel.queues.broker.depths import DepthReader, QueueDepth, require
from tiercel.queues.errors import AddressError, QueuesError
from tiercel.queues.outage import Spared
from tiercel.queues.publishing import dead_letters
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.workers.control.presence import Lease, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry, TopologyNote
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.findings import UNKNOWN_HEALTH, Health, ServerProblems
from tiercel.workers.monitoring.health import HealthMemory
from tiercel.workers.monitoring.overview import SINK, SOURCE, Overview, Own, QueueRow, overview_of
from tiercel.workers.monitoring.rows import PER_SECOND, Readings, inboxes_in

# Dead letters shown per queue, oldest first, with at most 64 KiB of each body.
SHOWN = 50
PAUSE_S = 5.0
Show = Callable[[str, int], Sequence[DeadLetter]]
log = logging.getLogger(__name__)
# Errors per reading; views group them by reason.
ERRORS_SHOWN = 200
_CENSUS_SHARE = 20
# Each look begins with one call, three tries: Prometheus waits ten seconds for the figures.
_PATIENCE = timedelta(seconds=1.5)
_SPAN_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Addresses of the servers to read. They may contain passwords."""

    redis_urls: tuple[str, ...]
    amqp_url: str | None = None
    management_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """One reading; for a server that did not answer, the figures of its last answer."""

    at: datetime
    topologies: tuple[str, ...] = ()
    # None: there is no such topology, or Redis has never answered.
    overview: Overview | None = None
    problems: ServerProblems
    health: Health = UNKNOWN_HEALTH


@dataclass
class _KnownTopology:
    """A known topology, and all that is kept of it between readings."""

    note: TopologyNote
    reader: TopologyReader | None = None
    last: dict[Window, Overview] = field(default_factory=dict)
    depths: tuple[QueueDepth, ...] = ()
    memory: HealthMemory = field(default_factory=HealthMemory)
    # The last warning about its data.
    said: str = ""

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()


class Watcher:
    """Reads topologies again and again. Thread-safe.

    A server that does not answer is reported, never raised.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._registry = Registry(addresses.redis_urls[0], _PATIENCE)
        self._lock = threading.Lock()
        self._watched: dict[str, _KnownTopology] = {}
        self._depth_reader = DepthReader(addresses.amqp_url or "", addresses.management_url)
        self._redis = Spared(RedisUnavailableError)

    def look(self, name: str | None, window: Window) -> Look:
        """Read a topology, by default one that runs; returns within the clients' timeouts."""
        with self._lock:
            return self._look(name, window, self._refresh())

    def all(self, window: Window = Window.ALL_TIME) -> tuple[dict[str, Look], dict[str, bool]]:
        """Return a reading of every known topology, and for each server if it answers."""
        with self._lock:
            problem = self._refresh()
            looks: dict[str, Look] = {}
            for name in self._watched:
                look = looks[name] = self._look(name, window, problem)
                # Otherwise each topology would wait for a server that is away.
                problem = None if look.problems.unreadable else look.problems.redis
            up = {"redis": problem is None}
            if self._addresses.amqp_url:
                found = [look.problems.rabbitmq for look in looks.values()] or [self._survey(None)]
                up["rabbitmq"] = not any(found)
            return looks, up

    def close(self) -> None:
        """Release the connections, after a reading that is under way. Idempotent."""
        with self._lock:
            self._registry.close()
            for watched in self._watched.values():
                watched.close()
            self._depth_reader.close()

    def _look(self, name: str | None, window: Window, problem: str | None) -> Look:
        """Read a topology, unless Redis has a ``problem``."""
        found = full = None
        unreadable = False
        chosen = name if name is not None else self._first(window, away=problem is not None)
        # None: clients may ask for any name.
        watched = None if chosen is None else self._watched.get(chosen)
        if watched is not None:
            if problem is None:
                problem, unreadable = self._read(watched, window)
            found = watched.last.get(window)
            full = self._full(watched) if problem is None else None
        rabbitmq_problem = self._survey(watched)
        if watched is not None and found is not None:
            found = _with_queues(found, watched)
        at = datetime.now(UTC)
        problems = ServerProblems(
            redis=problem,
            full=full,
            rabbitmq=rabbitmq_problem,
            blocked=self._blocked() if rabbitmq_problem is None else None,
            unreadable=unreadable,
        )
        return Look(
            at=at,
            topologies=tuple(self._watched),
            overview=found,
            problems=problems,
            health=(watched.memory if watched else HealthMemory()).judge(found, problems, at),
        )

    def _first(self, window: Window, *, away: bool) -> str | None:
        """Return a topology that was running at the last reading, else the first one."""
        for name, watched in self._watched.items():
            if window not in watched.last and not away:
                problem, unreadable = self._read(watched, window)
                away = problem is not None and not unreadable
            seen = watched.last.get(window)
            if seen is not None and seen.running:
                return name
        return next(iter(self._watched), None)

    def _refresh(self) -> str | None:
        """Read the list of topologies; return the problem if Redis does not answer."""
        try:
            with self._redis.read():
                notes = self._registry.topologies()
        except AckerError as error:
            return redact(str(error))
        before, self._watched = self._watched, {}
        for name, note in notes.items():
            watched = self._watched[name] = before.get(name) or _KnownTopology(note)
            watched.note = note
        for forgotten in before.keys() - notes.keys():
            before[forgotten].close()
        return None

    def _read(self, watched: _KnownTopology, window: Window) -> tuple[str | None, bool]:
        """Read a topology; return the problem, and True if only this topology has it."""
        note, reader = watched.note, watched.reader
        if reader is None or reader.note != note:
            watched.close()
            reader = watched.reader = TopologyReader(self._addresses.redis_urls, note)
        try:
            with self._redis.read():
                watched.last[window] = reader.read(window)
        except RedisUnavailableError as error:
            return redact(str(error)), False
        except (AckerError, ValueError, TypeError, LookupError) as error:
            # Another version or a stranger wrote it: the other topologies must still be shown.
            said = (
                f"cannot read the data of {note.name} in Redis: "
                f"{redact(str(error))[:200] or type(error).__name__}"
            )
            if watched.said != said:
                watched.said = said
                log.warning(
                    "%s; its figures are missing", said, extra={"event": "unreadable_in_redis"}
                )
            return said, True
        return None, False

    def _full(self, watched: _KnownTopology) -> str | None:
        try:
            return watched.reader.full() if watched.reader else None
        except AckerError:  # the next reading reports it
            return None

    def _survey(self, watched: _KnownTopology | None) -> str | None:
        """Read the queues of a topology, if there are any; return the problem if RabbitMQ does not
        answer.
        """
        if not self._addresses.amqp_url:
            return None
        graph = None if watched is None else watched.note.graph
        queues = [] if graph is None else [*graph.queues, *graph.sinks]
        try:
            if watched is None or not queues:
                self._depth_reader.reach()
            else:
                watched.depths = tuple(self._depth_reader.look(queues))
        except QueuesError as error:
            return redact(str(error))
        return None

    def _blocked(self) -> str | None:
        """Return the problem if RabbitMQ, which answers, takes no messages."""
        alarms = self._depth_reader.alarms() if self._addresses.amqp_url else []
        if not alarms:
            return None
        return (
            f"RabbitMQ has a {' and a '.join(alarms)} alarm: it delivers messages, and takes none "
            "until it has room again"
        )


def _with_queues(seen: Overview, watched: _KnownTopology) -> Overview:
    read = watched.note.graph.queues
    return replace(
        seen,
        queues=tuple(each for each in watched.depths if each.name in read),
        sinks=tuple(each for each in watched.depths if each.name not in read),
    )


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
        self._clients = [
            (place_of(url), connect(url, prefix))
            for url, prefix in zip(redis_urls, prefixes, strict=True)
        ]
        self._inboxes = RedisInboxes(RedisServers(redis_urls), note.name)
        self._ledger = open_ledger(note.ledger_spec(redis_urls))
        self._states = RedisStateStore(note.ledger_spec(redis_urls), run_number=0)
        self._meter = RateMeter()
        self._census: Census | None = None
        self._census_at = 0.0
        self._newest: ErrorReport | None = None
        self._known: Sequence[KnownError] = ()

    def read(self, window: Window) -> Overview:
        """Return the topology, without its queues."""
        slots = self.metrics.slots()
        ten_minutes = window is Window.TEN_MINUTES
        counted = merged(slots) if ten_minutes else self.metrics.over(window)
        totals = counted.counts if window is Window.ALL_TIME else self.metrics.totals()
        note = self.note
        holder = self._lease.holder()
        reports = self.metrics.errors(ERRORS_SHOWN)
        readings = Readings(
            graph=note.graph,
            counted=counted,
            present=self._spout_seats.present(range(1, note.spout_tasks + 1)),
            state=self._control.state(),
            driver=holder is not None,
            driver_at=holder.whereabouts if holder else None,
            trouble=redact(holder.trouble) if holder else "",
            executors=holder.executors if holder else None,
            inboxes=self._inboxes.figures(inboxes_in(note.graph, totals)),
            census=self._look_at_ledger(),
            errors=[
                replace(error, message=redact(error.message), about=redact(error.about))
                for error in reports
            ],
            marks=self._states.marks([each.name for each in note.graph.bolts]),
            known_errors=self._look_at_traces(reports),
            in_flight_limit_s=note.in_flight_secs if note.times_out else 0.0,
            rates=self._meter.look(time.monotonic(), totals),
            slots=slots,
            killed=holder is None and self._control.was_killed(),
            states_lost=_states_lost(totals),
            paused=self._control.paused_since(),
            silent=self._control.silent_since([each.name for each in note.graph.spouts]),
        )
        return overview_of(note.name, readings)

    def full(self) -> str | None:
        """Return advice if the memory of a server is full, else None."""
        places = sorted({at for at, client in self._clients if is_full(client)})
        if not places:
            return None
        return (
            f"Redis is full ({', '.join(places)}): raise its maxmemory or free memory; messages in "
            "flight are finished, and no new ones are taken until then"
        )

    def close(self) -> None:
        """Release the connections. Idempotent."""
        for each in (
            self.metrics, self._control, self._lease, self._inboxes, self._ledger, self._states,
        ):  # fmt: skip
            each.close()
        for _, client in self._clients:
            client.close()

    def _look_at_traces(self, reports: Sequence[ErrorReport]) -> Sequence[KnownError]:
        """Return the kinds of errors that have a traceback; read them again after a new error.

        Unreadable tracebacks must not hide the rest of the topology: without them, views count
        only the errors that Redis still holds.
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
        """Return a census of the ledger, at most some seconds old.

        Censuses may take a twentieth of the time, because each one scans all keys of the server,
        including the keys of other users.
        """
        began = time.monotonic()
        if self._census is None or began >= self._census_at:
            self._census = self._ledger.census()
            ended = time.monotonic()
            self._census_at = ended + _CENSUS_SHARE * (ended - began)
        return self._census


def _states_lost(totals: Counts) -> Mapping[str, datetime]:
    """Return for each bolt when Redis lost its state; bolts that lost none are missing."""
    found = {name: total_of(totals, name)[STATE_LOST_AT] for name in totals}
    return {name: datetime.fromtimestamp(at, UTC) for name, at in found.items() if at > 0}


class RateMeter:
    """Computes rates over the last ten seconds. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Counts]] = deque()

    def look(self, now: float, totals: Counts) -> Counts:
        """Return the current rates, as counts per thousand seconds; nothing at first.

        A counter that decreases was lost by Redis: the meter starts again.
        """
        # Seen backwards, a counter that decreased has grown.
        if self._looks and any(grown > 0 for *_, grown in _growth(totals, self._looks[-1][1])):
            self._looks.clear()
        self._looks.append((now, totals))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _SPAN_S:
            self._looks.popleft()
        since, before = self._looks[0]
        rates: Counts = {}
        if now > since:
            for component, task, name, grown in _growth(before, totals):
                of_task = rates.setdefault(component, {}).setdefault(task, {})
                of_task[name] = round(PER_SECOND * grown / (now - since))
        return rates


def _growth(before: Counts, after: Counts) -> Iterator[tuple[str, int, str, int]]:
    """Yield each counter of ``after`` with its growth."""
    for component, tasks in after.items():
        for task, counts in tasks.items():
            known = before.get(component, {}).get(task, {})
            for name, count in counts.items():
                yield component, task, name, count - known.get(name, 0)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The content of ``tiercel depths``: RabbitMQ's queues, and tiercel's own in Redis."""

    queues: Sequence[QueueRow]
    # One entry per topology that the queues belong to.
    own: Sequence[Own]
    # Some figures are RabbitMQ's statistics, which are a few seconds old.
    lags: bool
    # Why figures are missing, one line each.
    problems: Sequence[str] = ()
    # False: a server is away, and only the figures of the other one are here.
    complete: bool = True


class Surveyor:
    """Takes surveys."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._reader = DepthReader(addresses.amqp_url or "", addresses.management_url)
        # The topologies in the last answer of Redis.
        self._known: Mapping[str, TopologyNote] = {}

    def take(self, names: Sequence[str]) -> Survey:
        """Read these queues; without names, the queues of all topologies that ever ran.

        If one server is away, the figures of the other one are in the survey. Raises UsageError if
        no topology ran, QueueMissingError for a name without a queue, AddressError; AckerError or
        QueuesError if there is nothing to show.
        """
        away: list[Exception] = []
        try:
            self._known = _known(self._addresses.redis_urls)
        except AckerError as error:
            away.append(error)
        graphs = [note.graph for note in self._known.values()]
        sources = sorted({queue for graph in graphs for queue in graph.queues})
        sinks = [queue for graph in graphs for queue in graph.sinks]
        if not names and not sources:
            if away:
                raise away[0]
            raise UsageError(
                "no topology has run here yet: name the queues, tiercel depths QUEUE ..."
            )
        uses = {**dict.fromkeys(sinks, SINK), **dict.fromkeys(sources, SOURCE)}
        found = self._look(names or list(dict.fromkeys([*sources, *sinks])), names, away)
        own = self._own(names, away)
        if away and not found and not own:
            raise away[-1]
        problems = [redact(str(error)) for error in away]
        return Survey(
            queues=[QueueRow(depth=depth, use=uses.get(depth.name, "")) for depth in found],
            own=own,
            lags=any(depth.unacked is not None for depth in found),
            problems=[*problems, *self._unknown(found)],
            complete=not away,
        )

    def _look(
        self, wanted: Sequence[str], named: Sequence[str], away: list[Exception]
    ) -> list[QueueDepth]:
        try:
            found = self._reader.look(wanted)
        except AddressError:
            raise
        except QueuesError as error:
            away.append(error)
            return []
        require(self._addresses.amqp_url or "", named, found)
        return found

    def _own(self, names: Sequence[str], away: list[Exception]) -> list[Own]:
        if away and isinstance(away[0], AckerError):
            return []
        notes = [
            note
            for note in self._known.values()
            if not names or {*names} & {*note.graph.queues, *note.graph.sinks}
        ]
        try:
            return [_own_of(self._addresses.redis_urls, note) for note in notes]
        except AckerError as error:
            away.append(error)
            return []

    def _unknown(self, found: Sequence[QueueDepth]) -> list[str]:
        """Say why figures of queues are unknown."""
        if all(depth.unacked is not None for depth in found):
            return []
        why = redact(self._reader.management_problem)
        if self._addresses.management_url is None:
            why = "the figures ? need RabbitMQ's HTTP API: name its address with --management"
        return [why] if why else []

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._reader.close()


def _known(redis_urls: tuple[str, ...]) -> Mapping[str, TopologyNote]:
    """Return the topologies that ran; none without a Redis."""
    if not redis_urls:
        return {}
    with closing(Registry(redis_urls[0])) as registry:
        return registry.topologies()


def _own_of(redis_urls: tuple[str, ...], note: TopologyNote) -> Own:
    with closing(TopologyReader(redis_urls, note)) as reader:
        return reader.read(Window.ALL_TIME).own


@dataclass(kw_only=True, slots=True)
class Listing:
    """The oldest dead letters of one queue."""

    letters: Sequence[DeadLetter] = ()
    # The error if RabbitMQ refused.
    problem: str | None = None
    # Number of letters at the time of reading, from the queue depths.
    depth: int = 0
    looked_at: float = 0.0


class DeadLetterCache:
    """The last reading of the dead letters of each queue, for any number of pages. Thread-safe.

    RabbitMQ counts each reading as a delivery. Before 4.3, a letter that was read three times moves
    behind the others. So a queue is read again only when the number of its letters has changed.
    """

    def __init__(
        self, amqp_url: str, show: Show | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show or (lambda queue, limit: dead_letters.show(amqp_url, queue, limit))
        self._clock = clock
        self._looking = threading.Lock()
        self._listings: dict[str, Listing] = {}

    def listed(self, queue: str, depth: int | None) -> Listing:
        """Return the letters of a queue; ``depth`` is how many it has now, None if unknown.

        Reads the queue at most once per five seconds, and only if the number has changed.
        """
        with self._looking:
            found = self._listings.get(queue)
            if depth is None or (found is None and not depth):
                return Listing()
            if found is None or self._is_old(found, depth):
                try:
                    found = self._keep(queue, self._show(queue, SHOWN), depth)
                except QueuesError as error:
                    found = self._keep(queue, (), depth, redact(str(error)))
            return found

    def look(self, queue: str) -> Sequence[DeadLetter]:
        """Read the queue now. Raises QueuesError."""
        with self._looking:
            letters = self._show(queue, SHOWN)
            self._keep(queue, letters, len(letters))
            return letters

    def _is_old(self, found: Listing, depth: int) -> bool:
        if len(found.letters) >= SHOWN:
            # Newer letters would not be shown anyway.
            found.depth = max(depth, found.depth)
        if self._clock() < found.looked_at + PAUSE_S:
            return False
        return found.problem is not None or depth != found.depth

    def _keep(
        self, queue: str, letters: Sequence[DeadLetter], depth: int, problem: str | None = None
    ) -> Listing:
        found = self._listings[queue] = Listing(
            letters=letters, problem=problem, depth=depth, looked_at=self._clock()
        )
        return found
