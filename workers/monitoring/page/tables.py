"""The page's tables in the form that NiceGUI takes: columns, and a {"name": text} per row. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from tiercel.spark_jobs.logs.formatters import printable
from tiercel.workers.monitoring import tables
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.rows import TaskRow
from tiercel.workers.monitoring.tables import (
    ACKER,
    BOLTS,
    FAULTS,
    ONCE,
    PROCESSES,
    QUEUES,
    SPOUT_TASKS,
    SPOUTS,
    TASKS,
    Kind,
    TableKind,
)

# The page shows one topology, and letters are selected by row.
OWN = tables.OWN.without("topology")
DEAD = tables.DEAD.without("id")

_WRAP = "white-space: normal; overflow-wrap: anywhere; min-width: 220px"
# All rows are sent to each page every two seconds.
_TASKS_SHOWN = 100
Cells = dict[str, str]
R = TypeVar("R")


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


def rows_of(kind: TableKind[R], rows: Iterable[R]) -> list[Cells]:
    """Return the rows, each with its number as key."""
    return [
        {
            "key": str(number),
            **{column.name: printable(column.text(row)) for column in kind.columns},
        }
        for number, row in enumerate(rows)
    ]


def tables_of(overview: Overview) -> dict[TableKind[Any], list[Cells]]:
    """Return the rows of all tables but the dead letters."""
    return {
        SPOUTS: rows_of(SPOUTS, overview.spouts),
        BOLTS: rows_of(BOLTS, overview.bolts),
        TASKS: rows_of(TASKS, _tasks_shown(overview.tasks)),
        ACKER: rows_of(ACKER, [overview.acker]),
        ONCE: rows_of(ONCE, overview.once),
        QUEUES: rows_of(QUEUES, overview.queue_rows),
        OWN: rows_of(OWN, [overview.own]),
        FAULTS: rows_of(FAULTS, overview.faults),
        SPOUT_TASKS: rows_of(SPOUT_TASKS, overview.spout_tasks),
        PROCESSES: rows_of(PROCESSES, overview.processes),
    }


def _tasks_shown(rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
    """Return all tasks; if too many, the ones without a process or furthest behind."""
    if len(rows) <= _TASKS_SHOWN:
        return rows
    return sorted(rows, key=lambda row: (row.attended, -row.oldest_s))[:_TASKS_SHOWN]
