"""The tables of every view: their columns, the text of each cell, and formats of numbers and
times. Pure.

Terminals and the page show these tables; each view chooses the columns that it leaves out.
"""

from __future__ import annotations

import codecs
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from tiercel.acker.metrics.contract import RETRY_LATER, ErrorReport, KnownError
from tiercel.queues.nouns import counted
from tiercel.queues.peek import QueuedMessage
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import printable, redact
from tiercel.spark_jobs.state.encoding import StateEntry
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.steering import Standing
from tiercel.workers.monitoring.overview import AckerRow, Fault, OnceRow, Own, QueueRow, SpoutRow
from tiercel.workers.monitoring.rows import (
    BoltRow,
    ProcessRow,
    SpoutTaskRow,
    TaskRow,
    WindowsRow,
)

UNKNOWN = "?"
_WHITE = "\t\n"
# Bytes per line of a dump.
_DUMPED = 16
# Tasks that are named, before the rest is counted.
_NAMED = 3


def count(number: int | None) -> str:
    """Format as ``1,234``; a question mark for None."""
    return UNKNOWN if number is None else f"{number:,}"


def _known(number: int | None) -> str:
    """Format as ``1,234``; empty for None."""
    return "" if number is None else count(number)


def per_second(rate: float | None) -> str:
    """Format with one decimal below ten, none above; a question mark for None."""
    if rate is None:
        return UNKNOWN
    return f"{rate:.1f}" if rate < 9.95 else f"{rate:,.0f}"


def tuples_in(number: int, over_s: float) -> str:
    """Format as ``2.1 tuples per second``, or as ``1 tuple in 1 min`` where that would be 0.0."""
    rate = number / over_s
    if rate >= 0.05:
        return f"{per_second(rate)} tuples per second"
    return f"{counted(number, 'tuple')} in {span(over_s)}"


def milliseconds(number: float | None) -> str:
    """Format with at least three significant digits; empty for None."""
    if number is None:
        return ""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.3f}"


def seconds(number: float) -> str:
    """Format as ``1.2 s``."""
    return f"{number:,.1f} s"


# A bolt with this share of its tuples in another one's steps has no work of its own to speak of.
_ALL = 0.995


def share(number: float) -> str:
    """Format as ``0.123``, as Storm shows capacities."""
    return f"{number:.3f}"


def size(number: int) -> str:
    """Format as ``1.2 MiB``."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def working(bolt: BoltRow) -> str:
    """Say how busy the bolt's tasks are."""
    if bolt.tasks == 1:
        who = "its task works"
    elif bolt.free_tasks_take:
        who = f"its {count(bolt.tasks)} tasks work"
    else:
        who = f"the busiest of its {count(bolt.tasks)} tasks works"
    return f"{who} {bolt.busy:.0%} of the time"


def queued(bolt: BoltRow) -> str:
    """Say how many tuples wait for a bolt; empty if none does."""
    number, oldest_s = bolt.queued
    oldest = f", the oldest for {seconds(oldest_s)}" if oldest_s else ""
    return f"{waiting_in_words(number, 'tuple')} for it{oldest}" if number else ""


def waiting_in_words(number: int, noun: str) -> str:
    """Format as ``1 message waits`` or ``2 messages wait``."""
    return f"{counted(number, noun)} {'waits' if number == 1 else 'wait'}"


def tasks_named(tasks: Sequence[int]) -> str:
    """Format as ``3, 4, 5 and 2 more``; empty without tasks."""
    rest = len(tasks) - _NAMED
    named = ", ".join(str(task) for task in tasks[:_NAMED])
    return f"{named} and {count(rest)} more" if rest > 0 else named


def body_text(body: bytes, whole: int) -> tuple[str, str]:
    """Return the kind of a body, "text" or "binary", and the body in readable form.

    ``whole`` is the size of the whole body in bytes, of which ``body`` may be only the beginning.

    Text is UTF-8 without control characters; invisible characters, and characters that change how
    others look, are escaped. Any other body becomes a hexadecimal dump. The last line
    gives the number of missing bytes, if any.
    """
    try:
        # The cut may split a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(body, final=len(body) == whole)
    except UnicodeError:
        text = "\0"
    text = text.replace("\r\n", "\n")
    if any(ord(each) < 32 and each not in _WHITE + "\r" for each in text):
        kind = "binary"
        shown = "\n".join(_dumped(body, start) for start in range(0, len(body), _DUMPED))
    else:
        kind = "text"
        shown = printable(text, kept=_WHITE)
    rest = whole - len(body)
    return kind, f"{shown}\n… and {count(rest)} bytes more" if rest else shown


def _dumped(body: bytes, start: int) -> str:
    line = body[start : start + _DUMPED]
    letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
    return f"{start:08x}  {line.hex(' '):<{3 * _DUMPED}} {letters}"


def span(number: float) -> str:
    """Format as ``1 d 2 h``, ``3 h 4 min``, ``5 min 6 s``: the two largest units."""
    whole = round(number)
    parts = [
        (whole // 86_400, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "min"),
        (whole % 60, "s"),
    ]
    first = next((at for at, (amount, _) in enumerate(parts) if amount), len(parts) - 1)
    return " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2])


def when(moment: datetime) -> str:
    """Format in local time, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(number_ms: float) -> str:
    """Format as ``0.4 ms``, ``12 ms``, ``1.2 s``, ``45 s``."""
    if number_ms < 9.95:
        return f"{number_ms:.1f} ms"
    if number_ms < 995:
        return f"{number_ms:,.0f} ms"
    return f"{number_ms / 1000:,.1f} s" if number_ms < 9_950 else f"{number_ms / 1000:,.0f} s"


def heading_of(known: KnownError) -> str:
    """Return the line above a traceback: the error, its count, and its times."""
    first = known.first
    times = (
        f"once, {when(first.at)}"
        if known.count == 1
        else f"{count(known.count)} times, {when(first.at)} to {when(known.last)}"
    )
    return f"{first.component}: {first.reason} · {times} · the first one, in task {first.task}"


R = TypeVar("R")


class Kind(enum.Enum):
    """The kind of content in a column, which decides its layout."""

    NUMBER = "number"
    # A name, which the operator may type: never broken over two lines.
    NAME = "name"
    # A date and time, broken only between the two.
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
        """Return the table with only these columns, in this order."""
        known = {column.name: column for column in self.columns}
        return TableKind(self.title, tuple(known[name] for name in names))

    def without(self, *names: str) -> TableKind[R]:
        """Return the table without these columns."""
        return self.only(*(each.name for each in self.columns if each.name not in names))


def _seen(row: TaskRow) -> str:
    """Return the age of the last report; "now" for attended tasks, whose age means nothing."""
    if row.attended:
        return "now"
    return "never" if row.seen_s is None else f"{seconds(row.seen_s)} ago"


def _turn(row: SpoutTaskRow) -> str:
    if not row.running:
        return "no worker"
    return "emits" if row.presence.active else "does not emit"


def _process(place: Whereabouts | None) -> str:
    return "" if place is None else f"{place.host}, pid {place.pid}"


def _seconds(number: float | None) -> str:
    return "" if number is None else seconds(number)


def _when(moment: datetime | None, unknown: str = UNKNOWN) -> str:
    return unknown if moment is None else when(moment)


def _since(place: Whereabouts | None) -> str:
    return "" if place is None else when(place.since)


def _times(fault: Fault) -> str:
    return count(fault.count) if fault.exact else f"{count(fault.count)} kept"


def _chained(chained: tuple[str, float] | None) -> str:
    """Return the bolt whose steps execute a bolt's tuples, with their share if it is not all."""
    if chained is None:
        return ""
    head, part = chained
    return head if part > _ALL else f"{head}: {100 * part:.0f} %"


def _message(error: ErrorReport | None) -> str:
    if error is None:
        return ""
    return f"{error.message}; {error.about}" if error.about else error.message


def _about(message: QueuedMessage) -> str:
    """Return the exchange of a message, if it has a name, its properties and its headers."""
    place = {"exchange": message.exchange, "routing_key": message.routing_key}
    said = {**(place if message.exchange else {}), **message.properties, **message.headers}
    return redact(
        " ".join(f"{name}={'' if value is None else value}" for name, value in said.items())
    )


def reason_of(letter: DeadLetter) -> str:
    """Return why a letter is dead, with the passwords in addresses redacted."""
    return redact(letter.reason)


def requeue_question(queue: str, number: int | None) -> str:
    """Return the question before this many dead letters are requeued; None: all.

    >>> requeue_question("orders", 1)
    "Requeue 1 dead letter to 'orders'? Its delivery count restarts."
    """
    many = "all dead letters" if number is None else counted(number, "dead letter")
    counts = "Its delivery count restarts" if number == 1 else "Their delivery counts restart"
    return f"Requeue {many} to {queue!r}? {counts}."


SPOUTS = TableKind[SpoutRow](
    "Spouts",
    (
        Column("spout", lambda row: row.name, Kind.NAME),
        Column("tasks", lambda row: f"{row.running}/{row.tasks}"),
        Column("emitted", lambda row: count(row.counts["emitted"])),
        Column("transferred", lambda row: count(row.counts["transferred"])),
        Column("complete ms", lambda row: milliseconds(row.complete_ms)),
        Column("p99 ms", lambda row: milliseconds(row.complete_p99_ms)),
        Column("acked", lambda row: count(row.counts["acked"])),
        Column("failed", lambda row: count(row.counts["failed"])),
        Column("timeouts", lambda row: count(row.counts["timeout"])),
        Column("released", lambda row: count(row.counts["released"])),
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
        Column("emitted", lambda row: count(row.counts["emitted"])),
        Column("transferred", lambda row: count(row.counts["transferred"])),
        Column("capacity", lambda row: share(row.capacity)),
        Column("busy now", lambda row: share(row.busy)),
        Column("execute ms", lambda row: milliseconds(row.execute_ms)),
        Column("executed", lambda row: count(row.counts["executed"])),
        Column("process ms", lambda row: milliseconds(row.process_ms)),
        Column("acked", lambda row: count(row.counts["acked"])),
        Column("failed", lambda row: count(row.counts["failed"])),
        Column("retried", lambda row: count(row.counts["retried"])),
        Column("retry later", lambda row: count(row.counts[RETRY_LATER])),
        Column("waiting", lambda row: count(row.waiting)),
        Column("retrying", lambda row: count(row.retrying)),
        Column("oldest", lambda row: seconds(row.oldest_s)),
        Column("in steps of", lambda row: _chained(row.chained), Kind.NAME),
        Column("steps/s", lambda row: per_second(row.steps_a_second)),
        Column("step ms", lambda row: milliseconds(row.step_ms)),
        Column("restarts", lambda row: count(row.restarts)),
        Column("without a process", lambda row: tasks_named(row.unattended)),
        Column("paused", lambda row: "paused" if row.paused else "", Kind.TEXT),
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
        Column("executed", lambda row: count(row.counts["executed"])),
        Column("capacity", lambda row: share(row.capacity)),
        Column("busy now", lambda row: share(row.busy)),
        Column("steps/s", lambda row: per_second(row.steps_a_second)),
        Column("step ms", lambda row: milliseconds(row.step_ms)),
        Column("in one call for", lambda row: _seconds(row.doing_s)),
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
        Column("updates", lambda row: count(row.counts["executed"])),
        Column("update ms", lambda row: milliseconds(row.update_ms)),
        Column("completed", lambda row: count(row.counts["acked"])),
        Column("failed by bolts", lambda row: count(row.counts["failed"])),
        Column("timeouts", lambda row: count(row.timeouts)),
        Column("late", lambda row: count(row.counts["late"])),
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
WINDOWS = TableKind[WindowsRow](
    "Windows",
    (
        Column("bolt", lambda row: row.name, Kind.NAME),
        Column("open", lambda row: _known(row.open)),
        Column("held", lambda row: _known(row.held)),
        Column("watermark", lambda row: _when(row.watermark, ""), Kind.MOMENT),
        Column("watermark lag", lambda row: _seconds(row.watermark_lag_s)),
        Column("closed", lambda row: count(row.closed)),
        Column("failed calls", lambda row: count(row.failed)),
        Column("late", lambda row: count(row.late)),
        Column("bad timestamps", lambda row: count(row.refused)),
        Column("oldest held", lambda row: _seconds(row.oldest_s)),
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
        Column("reason", _message, Kind.LONG),
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
        Column("last message", lambda row: row.about.removeprefix("message "), Kind.TEXT),
    ),
)
SPOUT_TASKS = TableKind[SpoutTaskRow](
    "Spout tasks",
    (
        Column("spout", lambda row: row.component, Kind.NAME),
        Column("task", lambda row: str(row.task)),
        Column("state", _turn, Kind.TEXT),
        Column("in flight", lambda row: count(row.presence.pending)),
        Column("oldest", lambda row: seconds(row.presence.oldest_s)),
        Column("process", lambda row: _process(row.presence.whereabouts), Kind.NAME),
        Column("since", lambda row: _since(row.presence.whereabouts), Kind.NAME),
    ),
)
PROCESSES = TableKind[ProcessRow](
    "Processes",
    (
        Column("host", lambda row: row.place.host if row.place else UNKNOWN, Kind.NAME),
        Column("pid", lambda row: str(row.place.pid) if row.place else UNKNOWN),
        Column("since", lambda row: _since(row.place) or UNKNOWN, Kind.NAME),
        Column("code", lambda row: (row.place and row.place.code) or UNKNOWN, Kind.NAME),
        Column("runs", lambda row: row.runs, Kind.LONG),
    ),
)
DEAD = TableKind[DeadLetter](
    "Dead letters",
    (
        Column("died", lambda row: _when(row.died), Kind.MOMENT),
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
TOPOLOGIES = TableKind[Standing](
    "Topologies",
    (
        Column("topology", lambda row: row.name, Kind.NAME),
        Column("state", lambda row: row.state, Kind.TEXT),
        Column("health", lambda row: row.health, Kind.TEXT),
        Column("driver", lambda row: _process(row.driver_at) if row.driver else "none", Kind.NAME),
        Column("spout workers", lambda row: f"{row.spouts}/{row.spout_tasks}"),
        Column("in flight", lambda row: count(row.in_flight)),
        Column("last run", lambda row: _when(row.last_run), Kind.MOMENT),
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
