"""Tables of the terminal, the same for ``tiercel depths`` and ``tiercel top``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from tiercel.acker.metrics.contract import ErrorReport
from tiercel.queues.broker.depths import QueueDepth
from tiercel.workers.monitoring.bolts import BoltRow
from tiercel.workers.monitoring.overview import AckerRow, Overview, Own, SpoutRow
from tiercel.workers.monitoring.survey import Survey
from tiercel.workers.monitoring.wording import (
    count,
    milliseconds,
    per_second,
    seconds,
    share,
    size,
    span,
    tasks_named,
    when,
)
from tiercel.workers.terminal import cell

_LOOK: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}


def depth_table(found: Sequence[QueueDepth]) -> Table:
    """Every queue; what is unknown is a question mark."""
    table = _table(
        "queue", "ready", "unacked", "delayed", "consumers", "in/s", "out/s", "dead letters"
    )
    for depth in found:
        numbers = [
            count(depth.ready),
            count(depth.unacked),
            count(depth.delayed),
            count(depth.consumers),
        ]
        rates = [per_second(depth.in_rate), per_second(depth.out_rate)]
        dead = cell(count(depth.dead_lettered), "bold red" if depth.dead_lettered else "")
        table.add_row(cell(depth.name), *numbers, *rates, dead)
    return table


def own_table(found: Sequence[Own]) -> Table:
    """The queues of our own, one row per topology."""
    table = _table(
        "topology",
        "waiting",
        "oldest waiting",
        "pending roots",
        "oldest pending",
        "feed entries",
        "feed lag",
    )
    for own in found:
        waiting = [count(own.waiting), seconds(own.oldest_waiting_s)]
        pending = [count(own.pending), seconds(own.oldest_pending_s)]
        table.add_row(
            cell(own.topology), *waiting, *pending, count(own.feed_entries), seconds(own.feed_lag_s)
        )
    return table


def survey_view(survey: Survey) -> RenderableType:
    """Content of ``tiercel depths``."""
    return Group(depth_table(survey.queues), *([own_table(survey.own)] if survey.own else []))


def top_view(overview: Overview, window: str, problems: Sequence[str]) -> RenderableType:
    """Everything about a topology, from top to bottom."""
    heading = cell(overview.name, "bold")
    heading.append(f"  {overview.state}  {window} ({span(overview.seconds)} counted)", "not bold")
    if overview.state != "not running" and not overview.driver:
        heading.append("  no driver", "bold red")
    warnings = [cell(problem, "bold red") for problem in problems]
    tables = [
        _spouts(overview.spouts),
        _bolts(overview.bolts),
        _tasks(overview),
        _acker(overview.acker),
    ]
    tables += [depth_table(overview.queues)] if overview.queues else []
    return Group(
        heading, *warnings, *tables, own_table([overview.own]), _errors(overview.errors[:5])
    )


def _spouts(rows: Sequence[SpoutRow]) -> Table:
    table = _table(
        "spout",
        "tasks",
        "emitted",
        "transferred",
        "complete ms",
        "p99 ms",
        "acked",
        "failed",
        "timeouts",
        "pending",
    )
    for row in rows:
        numbers = [
            count(row.emitted),
            count(row.transferred),
            milliseconds(row.complete_ms),
            milliseconds(row.complete_p99_ms),
        ]
        ends = [count(row.acked), count(row.failed), count(row.timeouts), count(row.pending)]
        table.add_row(cell(row.name), f"{row.running}/{row.tasks}", *numbers, *ends)
    return table


def _bolts(rows: Sequence[BoltRow]) -> Table:
    table = _table(
        "bolt",
        "tasks",
        "emitted",
        "transferred",
        "capacity",
        "execute ms",
        "executed",
        "process ms",
        "acked",
        "failed",
    )
    for row in rows:
        times = [
            share(row.capacity),
            milliseconds(row.execute_ms),
            count(row.executed),
            milliseconds(row.process_ms),
        ]
        ends = [count(row.acked), count(row.failed)]
        sent = [count(row.emitted), count(row.transferred)]
        table.add_row(cell(row.name), count(row.tasks), *sent, *times, *ends)
    return table


def _tasks(overview: Overview) -> Table:
    """The inboxes and steps of each bolt's tasks."""
    table = _table(
        "bolt",
        "waiting",
        "oldest",
        "busy now",
        "steps/s",
        "step ms",
        "restarts",
        "without a process",
    )
    for row in overview.bolts:
        waiting = [count(row.waiting), seconds(row.oldest_s), share(row.busy)]
        steps = [per_second(row.steps_a_second), milliseconds(row.step_ms), count(row.restarts)]
        style = "bold red" if row.unattended and overview.driver else ""
        table.add_row(cell(row.name), *waiting, *steps, cell(tasks_named(row.unattended), style))
    return table


def _acker(row: AckerRow) -> Table:
    names = (
        "__acker",
        "pending trees",
        "memory",
        "updates/s",
        "updates",
        "completed",
        "failed",
        "timeouts",
        "late",
    )
    table = _table(*names)
    now = [
        count(row.pending),
        size(row.memory_bytes),
        per_second(row.updates_a_second),
        count(row.updates),
    ]
    table.add_row(
        "", *now, count(row.completed), count(row.failed), count(row.timeouts), count(row.late)
    )
    return table


def _errors(errors: Sequence[ErrorReport]) -> RenderableType:
    if not errors:
        return cell("no errors", "dim")
    table = Table("time", "component", "task", "reason", **_LOOK)
    for error in errors:
        table.add_row(when(error.at), cell(error.component), str(error.task), cell(error.message))
    return table


def _table(first: str, *others: str) -> Table:
    """Narrow: the tables of ``tiercel depths`` fit 80 columns, those of ``tiercel top`` 100."""
    table = Table(**_LOOK)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    return table
