"""The tables of the pages, in the form that NiceGUI takes, and the addresses of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

from nicegui import ui

from tiercel.spark_jobs.logs.formatters import printable
from tiercel.workers.monitoring import tables
from tiercel.workers.monitoring.findings import Grade
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.rows import TaskRow
from tiercel.workers.monitoring.tables import (
    FAULTS,
    SPOUT_TASKS,
    TASKS,
    Column,
    Kind,
    TableKind,
    count,
    duration,
    per_second,
)
from tiercel.workers.monitoring.watcher import Look

# The page shows one topology, and letters are selected by row.
OWN = tables.OWN.without("topology")
DEAD = tables.DEAD.without("id")

_WRAP = "white-space: normal; overflow-wrap: anywhere; min-width: 220px"
# All rows are sent to each page every two seconds.
TASKS_SHOWN = 100
Cells = dict[str, str]
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageAddress:
    """The address of a page: all topologies, one topology, or one thing of it.

    A dead letter is named by its queue and its id, an error by ``Fault.id``.
    """

    topology: str | None = None
    component: str | None = None
    error: str | None = None
    queue: str | None = None
    letter: str | None = None

    @property
    def text(self) -> str:
        """The address as text, relative to the first page."""
        return "?" + urlencode({name: value for name, value in asdict(self).items() if value})


def definitions(kind: TableKind[Any]) -> list[dict[str, Any]]:
    """Return the columns; numbers are right-aligned."""
    return [
        {
            "name": column.name,
            "label": column.name,
            "field": column.name,
            "align": "right" if column.kind is Kind.NUMBER else "left",
            "style": _WRAP if column.kind is Kind.LONG else "",
        }
        for column in kind.columns
    ]


def rows_of(
    kind: TableKind[R], rows: Iterable[R], key: Callable[[R], str] | None = None
) -> list[Cells]:
    """Return the rows, each with its key, by default its number."""
    return [
        {
            "key": key(row) if key else str(number),
            **{column.name: printable(column.text(row)) for column in kind.columns},
        }
        for number, row in enumerate(rows)
    ]


def tables_of(overview: Overview) -> dict[TableKind[Any], list[Cells]]:
    """Return the rows of all tables but the dead letters."""
    found = {kind: rows_of(kind, rows(overview)) for kind, rows in DETAILS.items()}
    return {**found, FAULTS: rows_of(FAULTS, overview.faults, attrgetter("id"))}


def _tasks_shown(seen: Overview) -> Sequence[TaskRow]:
    """Return all tasks; if there are too many, first tasks without a process, then by age."""
    if len(seen.tasks) <= TASKS_SHOWN:
        return seen.tasks
    return sorted(seen.tasks, key=lambda row: (row.attended, -row.oldest_s))[:TASKS_SHOWN]


# The tables at the end of the page, in order, with their rows.
DETAILS: dict[TableKind[Any], Callable[[Overview], Iterable[Any]]] = {
    tables.SPOUTS: attrgetter("spouts"),
    tables.BOLTS: attrgetter("bolts"),
    TASKS: _tasks_shown,
    SPOUT_TASKS: attrgetter("spout_tasks"),
    tables.PROCESSES: attrgetter("processes"),
    tables.QUEUES: attrgetter("queue_rows"),
    tables.ACKER: lambda seen: [seen.acker],
    tables.WINDOWS: attrgetter("windows"),
    tables.ONCE: attrgetter("once"),
    OWN: lambda seen: [seen.own],
}


_GRADES = {Grade.ILL: 0, Grade.STRAINED: 1, Grade.WELL: 2, Grade.RESTING: 3}


def _now(figure: Callable[[Overview], Any], shown: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return the text of a cell with a figure of a topology; a question mark if nothing is known
    of the topology.
    """

    def text(row: tuple[str, Look]) -> str:
        seen = row[1].overview
        return tables.UNKNOWN if seen is None else shown(figure(seen))

    return text


def _worst(row: tuple[str, Look]) -> str:
    """Return the worst finding, and the number of the others."""
    findings = row[1].health.findings
    if not findings:
        return ""
    more = f"; and {count(len(findings) - 1)} more" if len(findings) > 1 else ""
    return f"{findings[0].sentence}{more}"


def dead_in(seen: Overview) -> int:
    """Return the number of dead letters of the queues that a topology reads."""
    return sum(queue.dead_lettered or 0 for queue in seen.queues)


def latency(number_ms: float | None) -> str:
    """Format a latency; a dash if nothing completed."""
    return "-" if number_ms is None else duration(number_ms)


# The table of the first page.
ALL = TableKind[tuple[str, Look]](
    "Topologies",
    (
        Column("health", lambda row: row[1].health.badge, Kind.NAME),
        Column("topology", itemgetter(0), Kind.NAME),
        Column("worst problem", _worst, Kind.LONG),
        Column("acked/s", _now(attrgetter("flow.acked_a_second"), per_second)),
        Column("p99", _now(attrgetter("flow.p99_ms"), latency)),
        Column("in flight", _now(attrgetter("own.pending"), count)),
        Column("ready", _now(lambda seen: sum(one.ready or 0 for one in seen.queues), count)),
        Column("dead letters", _now(dead_in, count)),
    ),
)


def topology_rows(looks: Mapping[str, Look]) -> list[Cells]:
    """Return the rows of ``ALL``, worst first, with addresses and grades."""
    found = sorted(looks.items(), key=lambda row: (_GRADES[row[1].health.grade], row[0]))
    return [
        cells | {"address": PageAddress(topology=name).text, "grade": look.health.grade.value}
        for cells, (name, look) in zip(rows_of(ALL, found), found, strict=True)
    ]


# Vue shows values as text, never as markup.
LINK_CELL = """
<q-td :props="props"><a class="tiercel-link" :href="props.row.address">{{ props.value }}</a></q-td>
"""
BADGE_CELL = """
<q-td :props="props" :class="props.row.grade">
  <div><span class="tiercel-badge small">{{ props.value }}</span></div>
</q-td>
"""
BODY_CELL = """
<q-td :props="props">
  <div>{{ props.value }}</div>
  <q-btn dense outline no-caps size="sm" label="whole body"
         @click="() => $parent.$emit('read', props.row.key)" />
</q-td>
"""


def table_of(kind: TableKind[Any], selection: Literal["multiple"] | None = None) -> ui.table:
    """Make a table of the page, without rows yet."""
    table = ui.table(
        columns=definitions(kind), rows=[], row_key="key", selection=selection
    ).classes("w-full")
    table.props('dense flat hide-pagination :rows-per-page-options="[0]" no-data-label="none"')
    return table.props(f'data-testid="{kind.title}"')
