"""The tables of every view: their columns, once each, and the text of each cell. Pure.

Terminals and the page show them; each says which columns it leaves out.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tiercel.acker.metrics.contract import ErrorReport
from tiercel.queues.peek import QueuedMessage
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.state.encoding import StateEntry
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.monitoring.faults import Fault
from tiercel.workers.monitoring.overview import AckerRow, Own, QueueRow, SpoutRow
from tiercel.workers.monitoring.rows import BoltRow, OnceRow, ProcessRow, SpoutTaskRow, TaskRow
from tiercel.workers.monitoring.wording import (
    UNKNOWN,
    count,
    milliseconds,
    per_second,
    seconds,
    share,
    size,
    tasks_named,
    when,
)

R = TypeVar("R")


class Kind(enum.Enum):
    """The kind of content in a column, which decides how it is laid out."""

    NUMBER = "number"
    # A name that the operator will type, never broken over two lines.
    NAME = "name"
    # Broken only between date and time.
    MOMENT = "moment"
    # A short text.
    TEXT = "text"
    # A text of any length.
    LONG = "long"


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column of a table."""

    name: str
    text: Callable[[R], str]
    kind: Kind = Kind.NUMBER


@dataclass(frozen=True)
class TableKind(Generic[R]):
    """A table; each of its rows shows one ``R``."""

    title: str
    columns: tuple[Column[R], ...]

    def only(self, *names: str) -> TableKind[R]:
        """Return the table with these columns alone, in this order."""
        known = {column.name: column for column in self.columns}
        return TableKind(self.title, tuple(known[name] for name in names))

    def without(self, *names: str) -> TableKind[R]:
        """Return the table without these columns."""
        return self.only(*(each.name for each in self.columns if each.name not in names))


def _seen(row: TaskRow) -> str:
    """Seconds for unattended tasks only: otherwise they would change each time and mean nothing."""
    if row.attended:
        return "now"
    return "never" if row.seen_s is None else f"{seconds(row.seen_s)} ago"


def _turn(row: SpoutTaskRow) -> str:
    if not row.running:
        return "no worker"
    return "emits" if row.active else "does not emit"


def _process(place: Whereabouts | None) -> str:
    return "" if place is None else f"{place.host}, pid {place.pid}"


def _since(place: Whereabouts | None) -> str:
    return "" if place is None else when(place.since)


def _times(fault: Fault) -> str:
    return count(fault.count) if fault.exact else f"{count(fault.count)} kept"


def _message(error: ErrorReport | None) -> str:
    return error.message if error else ""


def _about(message: QueuedMessage) -> str:
    """Return the named exchange that a message came by, its properties and its headers."""
    place = {"exchange": message.exchange, "routing_key": message.routing_key}
    said = {**(place if message.exchange else {}), **message.properties, **message.headers}
    return redact(
        " ".join(f"{name}={'' if value is None else value}" for name, value in said.items())
    )


def reason_of(letter: DeadLetter) -> str:
    """Return why a letter is dead, without the passwords in quoted addresses."""
    return redact(letter.reason)


SPOUTS = TableKind[SpoutRow](
    "Spouts",
    (
        Column("spout", lambda row: row.name, Kind.NAME),
        Column("tasks", lambda row: f"{row.running}/{row.tasks}"),
        Column("emitted", lambda row: count(row.emitted)),
        Column("transferred", lambda row: count(row.transferred)),
        Column("complete ms", lambda row: milliseconds(row.complete_ms)),
        Column("p99 ms", lambda row: milliseconds(row.complete_p99_ms)),
        Column("acked", lambda row: count(row.acked)),
        Column("failed", lambda row: count(row.failed)),
        Column("timeouts", lambda row: count(row.timeouts)),
        Column("released", lambda row: count(row.released)),
        Column("pending", lambda row: count(row.pending)),
        Column("oldest", lambda row: seconds(row.oldest_s)),
        Column("in back-off", lambda row: count(row.in_back_off)),
        Column("last error", lambda row: _message(row.last_error), Kind.LONG),
    ),
)
BOLTS = TableKind[BoltRow](
    "Bolts",
    (
        Column("bolt", lambda row: row.name, Kind.NAME),
        Column("tasks", lambda row: count(row.tasks)),
        Column("emitted", lambda row: count(row.emitted)),
        Column("transferred", lambda row: count(row.transferred)),
        Column("capacity", lambda row: share(row.capacity)),
        Column("busy now", lambda row: share(row.busy)),
        Column("execute ms", lambda row: milliseconds(row.execute_ms)),
        Column("executed", lambda row: count(row.executed)),
        Column("process ms", lambda row: milliseconds(row.process_ms)),
        Column("acked", lambda row: count(row.acked)),
        Column("failed", lambda row: count(row.failed)),
        Column("waiting", lambda row: count(row.waiting)),
        Column("oldest", lambda row: seconds(row.oldest_s)),
        Column("steps/s", lambda row: per_second(row.steps_a_second)),
        Column("step ms", lambda row: milliseconds(row.step_ms)),
        Column("restarts", lambda row: count(row.restarts)),
        Column("without a process", lambda row: tasks_named(row.unattended)),
        Column("last error", lambda row: _message(row.last_error), Kind.LONG),
    ),
)
TASKS = TableKind[TaskRow](
    "Bolt tasks",
    (
        Column("bolt", lambda row: row.component, Kind.NAME),
        Column("task", lambda row: str(row.task)),
        Column("waiting", lambda row: count(row.waiting)),
        Column("bytes", lambda row: size(row.waiting_bytes)),
        Column("oldest", lambda row: seconds(row.oldest_s)),
        Column("executed", lambda row: count(row.executed)),
        Column("capacity", lambda row: share(row.capacity)),
        Column("busy now", lambda row: share(row.busy)),
        Column("steps/s", lambda row: per_second(row.steps_a_second)),
        Column("step ms", lambda row: milliseconds(row.step_ms)),
        Column("in one call for", lambda row: "" if row.doing_s is None else seconds(row.doing_s)),
        Column("restarts", lambda row: count(row.restarts)),
        Column("process seen", _seen),
        Column("process", lambda row: _process(row.place), Kind.NAME),
        Column("since", lambda row: _since(row.place), Kind.NAME),
    ),
)
ACKER = TableKind[AckerRow](
    "__acker",
    (
        Column("pending trees", lambda row: count(row.pending)),
        Column("memory", lambda row: size(row.memory_bytes)),
        Column("updates/s", lambda row: per_second(row.updates_a_second)),
        Column("updates", lambda row: count(row.updates)),
        Column("update ms", lambda row: milliseconds(row.update_ms)),
        Column("completed", lambda row: count(row.completed)),
        Column("failed by bolts", lambda row: count(row.failed)),
        Column("timeouts", lambda row: count(row.timeouts)),
        Column("late", lambda row: count(row.late)),
    ),
)
ONCE = TableKind[OnceRow](
    "Once",
    (
        Column("component", lambda row: row.name, Kind.NAME),
        Column("no identity", lambda row: count(row.no_identity)),
        Column("applied before", lambda row: count(row.repeated)),
        Column("without a key", lambda row: count(row.unkeyed)),
        Column("maybe too old", lambda row: count(row.unsure)),
        Column("remembered", lambda row: count(row.remembered)),
    ),
)
QUEUES = TableKind[QueueRow](
    "Queues",
    (
        Column("queue", lambda row: row.depth.name, Kind.NAME),
        Column("use", lambda row: row.use, Kind.NAME),
        Column("ready", lambda row: count(row.depth.ready)),
        Column("unacked", lambda row: count(row.depth.unacked)),
        Column("delayed", lambda row: count(row.depth.delayed)),
        Column("consumers", lambda row: count(row.depth.consumers)),
        Column("in/s", lambda row: per_second(row.depth.in_rate)),
        Column("out/s", lambda row: per_second(row.depth.out_rate)),
        Column("dead letters", lambda row: count(row.depth.dead_lettered)),
    ),
)
OWN = TableKind[Own](
    "tiercel's own queues",
    (
        Column("topology", lambda row: row.topology, Kind.NAME),
        Column("waiting", lambda row: count(row.waiting)),
        Column("oldest waiting", lambda row: seconds(row.oldest_waiting_s)),
        Column("pending roots", lambda row: count(row.pending)),
        Column("oldest pending", lambda row: seconds(row.oldest_pending_s)),
        Column("in back-off", lambda row: count(row.in_back_off)),
        Column("feed entries", lambda row: count(row.feed_entries)),
        Column("feed lag", lambda row: seconds(row.feed_lag_s)),
    ),
)
ERRORS = TableKind[ErrorReport](
    "Last errors",
    (
        Column("time", lambda row: when(row.at), Kind.MOMENT),
        Column("component", lambda row: row.component, Kind.TEXT),
        Column("task", lambda row: str(row.task)),
        Column("reason", lambda row: row.message, Kind.LONG),
    ),
)
FAULTS = TableKind[Fault](
    "Errors",
    (
        Column("last", lambda row: when(row.last), Kind.NAME),
        Column("times", _times),
        Column("component", lambda row: row.component, Kind.TEXT),
        Column("reason", lambda row: row.reason, Kind.LONG),
        Column("first", lambda row: when(row.first), Kind.NAME),
    ),
)
SPOUT_TASKS = TableKind[SpoutTaskRow](
    "Spout tasks",
    (
        Column("spout", lambda row: row.component, Kind.NAME),
        Column("task", lambda row: str(row.task)),
        Column("state", _turn, Kind.TEXT),
        Column("in flight", lambda row: count(row.pending)),
        Column("oldest", lambda row: seconds(row.oldest_s)),
        Column("process", lambda row: _process(row.place), Kind.NAME),
        Column("since", lambda row: _since(row.place), Kind.NAME),
    ),
)
PROCESSES = TableKind[ProcessRow](
    "Processes",
    (
        Column("host", lambda row: row.place.host if row.place else UNKNOWN, Kind.NAME),
        Column("pid", lambda row: str(row.place.pid) if row.place else UNKNOWN),
        Column("since", lambda row: _since(row.place) or UNKNOWN, Kind.NAME),
        Column("runs", lambda row: row.runs, Kind.LONG),
    ),
)
DEAD = TableKind[DeadLetter](
    "Dead letters",
    (
        Column("died", lambda row: UNKNOWN if row.died is None else when(row.died), Kind.MOMENT),
        Column("reason", reason_of, Kind.LONG),
        Column("bytes", lambda row: count(row.size)),
        Column("body", lambda row: row.preview, Kind.LONG),
        Column("id", lambda row: row.id, Kind.NAME),
    ),
)
MESSAGES = TableKind[QueuedMessage](
    "Messages",
    (
        Column("no.", lambda row: count(row.position)),
        Column("came back", lambda row: count(row.came_back)),
        Column("bytes", lambda row: count(row.size)),
        Column("about", _about, Kind.LONG),
        Column("body", lambda row: row.preview, Kind.LONG),
    ),
)
STATE = TableKind[StateEntry](
    "State",
    (
        Column("key", lambda row: row.key, Kind.LONG),
        Column("type", lambda row: row.type, Kind.TEXT),
        Column("value", lambda row: row.value, Kind.LONG),
    ),
)
