"""The columns and rows of the page's tables: {"name": text} per row, every cell a plain text.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiercel.acker.metrics.contract import ErrorReport
from tiercel.queues.broker.depths import QueueDepth
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.workers.monitoring.bolts import BoltRow, TaskRow
from tiercel.workers.monitoring.once import OnceRow
from tiercel.workers.monitoring.overview import AckerRow, Overview, Own, SpoutRow
from tiercel.workers.monitoring.wording import (
    count,
    milliseconds,
    per_second,
    seconds,
    share,
    size,
    tasks_named,
    when,
)
from tiercel.workers.printable import printable

_TEXTS = {"spout", "bolt", "queue", "last error", "component", "reason", "body", "time"}
_LONG = {"last error", "reason", "body"}
_WRAP = "white-space: normal; overflow-wrap: anywhere; min-width: 220px"
# Each page is sent all of its rows every two seconds.
_TASKS_SHOWN = 100
Cells = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TableKind:
    """One table of the page."""

    title: str
    columns: tuple[str, ...]

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """As NiceGUI takes them; the numbers stand to the right."""
        return [
            {
                "name": name,
                "label": name,
                "field": name,
                "align": "left" if name in _TEXTS else "right",
                "style": _WRAP if name in _LONG else "",
            }
            for name in self.columns
        ]

    def rows(self, cells: Sequence[Sequence[str]]) -> list[Cells]:
        """Each with a key, which is its number."""
        return [
            {"key": str(number), **dict(zip(self.columns, map(printable, row), strict=True))}
            for number, row in enumerate(cells)
        ]


SPOUTS = TableKind(
    title="Spouts",
    columns=(
        "spout", "tasks", "emitted", "transferred", "complete ms", "p99 ms", "acked", "failed",
        "timeouts", "released",
        "pending", "oldest", "last error",
    ),
)  # fmt: skip
BOLTS = TableKind(
    title="Bolts",
    columns=(
        "bolt", "tasks", "emitted", "transferred", "capacity", "busy now", "execute ms", "executed",
        "process ms", "acked",
        "failed", "waiting", "oldest", "steps/s", "step ms", "restarts", "without a process",
        "last error",
    ),
)  # fmt: skip
TASKS = TableKind(
    title="Bolt tasks",
    columns=(
        "bolt", "task", "waiting", "bytes", "oldest", "executed", "capacity", "busy now", "steps/s",
        "step ms",
        "restarts", "process seen",
    ),
)  # fmt: skip
ACKER = TableKind(
    title="__acker",
    columns=(
        "pending trees", "memory", "updates/s", "updates", "update ms", "completed",
        "failed by bolts", "timeouts", "late",
    ),
)  # fmt: skip
ONCE = TableKind(
    title="Once",
    columns=("component", "no identity", "applied before", "without a key", "maybe too old"),
)
QUEUES = TableKind(
    title="Queues",
    columns=("queue", "ready", "unacked", "delayed", "consumers", "in/s", "out/s", "dead letters"),
)
OWN = TableKind(
    title="tiercel's own queues",
    columns=(
        "waiting",
        "oldest waiting",
        "pending roots",
        "oldest pending",
        "feed entries",
        "feed lag",
    ),
)
ERRORS = TableKind(title="Last errors", columns=("time", "component", "task", "reason"))
DEAD = TableKind(title="Dead letters", columns=("reason", "bytes", "body"))


def tables_of(overview: Overview) -> dict[TableKind, list[Cells]]:
    """Return the rows of all tables but the dead letters."""
    return {
        SPOUTS: SPOUTS.rows([_spout(row) for row in overview.spouts]),
        BOLTS: BOLTS.rows([_bolt(row) for row in overview.bolts]),
        TASKS: TASKS.rows([_task(row) for row in _tasks_shown(overview.tasks)]),
        ACKER: ACKER.rows([_acker(overview.acker)]),
        ONCE: ONCE.rows([_once(row) for row in overview.once]),
        QUEUES: QUEUES.rows([_queue(row) for row in overview.queues]),
        OWN: OWN.rows([_own(overview.own)]),
        ERRORS: ERRORS.rows([_error(error) for error in overview.errors]),
    }


def dead_rows(letters: Sequence[DeadLetter]) -> list[Cells]:
    """The rows of the dead letters."""
    return DEAD.rows([(letter.reason, count(letter.size), letter.preview) for letter in letters])


def _spout(row: SpoutRow) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.running}/{row.tasks}",
        count(row.emitted),
        count(row.transferred),
        milliseconds(row.complete_ms),
        milliseconds(row.complete_p99_ms),
        count(row.acked),
        count(row.failed),
        count(row.timeouts),
        count(row.released),
        count(row.pending),
        seconds(row.oldest_s),
        _message(row.last_error),
    )


def _once(row: OnceRow) -> tuple[str, ...]:
    return (
        row.name,
        count(row.no_identity),
        count(row.repeated),
        count(row.unkeyed),
        count(row.unsure),
    )


def _bolt(row: BoltRow) -> tuple[str, ...]:
    return (
        row.name,
        count(row.tasks),
        count(row.emitted),
        count(row.transferred),
        share(row.capacity),
        share(row.busy),
        milliseconds(row.execute_ms),
        count(row.executed),
        milliseconds(row.process_ms),
        count(row.acked),
        count(row.failed),
        count(row.waiting),
        seconds(row.oldest_s),
        per_second(row.steps_a_second),
        milliseconds(row.step_ms),
        count(row.restarts),
        tasks_named(row.unattended),
        _message(row.last_error),
    )


def _tasks_shown(rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
    """All of them, or of very many those without a process and those that are behind most."""
    if len(rows) <= _TASKS_SHOWN:
        return rows
    return sorted(rows, key=lambda row: (row.attended, -row.oldest_s))[:_TASKS_SHOWN]


def _task(row: TaskRow) -> tuple[str, ...]:
    return (
        row.component,
        str(row.task),
        count(row.waiting),
        size(row.waiting_bytes),
        seconds(row.oldest_s),
        count(row.executed),
        share(row.capacity),
        share(row.busy),
        per_second(row.steps_a_second),
        milliseconds(row.step_ms),
        count(row.restarts),
        _seen(row),
    )


def _seen(row: TaskRow) -> str:
    """Seconds only where it is not attended: else they change with each look and say nothing."""
    if row.attended:
        return "now"
    return "never" if row.seen_s is None else f"{seconds(row.seen_s)} ago"


def _acker(row: AckerRow) -> tuple[str, ...]:
    return (
        count(row.pending),
        size(row.memory_bytes),
        per_second(row.updates_a_second),
        count(row.updates),
        milliseconds(row.update_ms),
        count(row.completed),
        count(row.failed),
        count(row.timeouts),
        count(row.late),
    )


def _queue(row: QueueDepth) -> tuple[str, ...]:
    depths = (count(row.ready), count(row.unacked), count(row.delayed), count(row.consumers))
    return (
        row.name,
        *depths,
        per_second(row.in_rate),
        per_second(row.out_rate),
        count(row.dead_lettered),
    )


def _own(own: Own) -> tuple[str, ...]:
    waiting = (count(own.waiting), seconds(own.oldest_waiting_s))
    pending = (count(own.pending), seconds(own.oldest_pending_s))
    return (*waiting, *pending, count(own.feed_entries), seconds(own.feed_lag_s))


def _error(error: ErrorReport) -> tuple[str, ...]:
    return (when(error.at), error.component, str(error.task), error.message)


def _message(error: ErrorReport | None) -> str:
    return error.message if error else ""
