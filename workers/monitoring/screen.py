"""Output for terminals: the tables of the commands, and the loop of ``tiercel top``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.segment import Segment, Segments
from rich.table import Table

from tiercel.acker.metrics.contract import ErrorReport, Window
from tiercel.queues.broker.depths import LAG_S
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring import tables
from tiercel.workers.monitoring.findings import Grade, Health
from tiercel.workers.monitoring.overview import AckerRow, Overview, Own, QueueRow
from tiercel.workers.monitoring.watcher import Addresses, Look, Survey, Watcher
from tiercel.workers.terminal import cell

R = TypeVar("R")
_Found = tuple[str, ErrorReport]
# Narrow: without the columns in _LESS, the tables of ``tiercel depths``, ``tiercel list`` and
# ``tiercel top`` fit a terminal of 80 characters.
_NARROW: Mapping[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
_ALARM = "bold red"
_LEVELS = {Grade.ILL: _ALARM, Grade.STRAINED: "yellow", Grade.WELL: "green"}
# More would push the tables off the screen.
_FINDINGS = 4
_LAG = f"unacked, delayed, in/s and out/s are up to {LAG_S} s old; the other figures are current"
# Wider than any terminal.
_ENDLESS = 100_000
# Characters of a date.
_DATE = 10
_LOOK_S = 1.0
WINDOWS = {
    "10m": Window.TEN_MINUTES,
    "3h": Window.THREE_HOURS,
    "1d": Window.ONE_DAY,
    "all": Window.ALL_TIME,
}
_SPOUTS = tables.SPOUTS.without("released", "oldest", "last error")
# Two tables of bolts, totals and current load, because one would be too wide.
_STEPS = (
    *(
        "waiting",
        "retrying",
        "oldest",
        "busy now",
        "in steps of",
        "steps/s",
        "step ms",
        "restarts",
    ),
    "without a process",
    "paused",
)
_BOLTS = tables.BOLTS.without("last error", *_STEPS)
_INBOXES = tables.BOLTS.only("bolt", *_STEPS)
_HEADING: tables.Column[AckerRow] = tables.Column("__acker", lambda _row: "", tables.Kind.NAME)
_ACKER = tables.TableKind(
    tables.ACKER.title, (_HEADING, *tables.ACKER.without("update ms").columns)
)
# Columns to leave out on a narrow terminal, in this order. Tables without an entry always fit. The
# page shows all columns.
_LESS = {
    tables.SPOUTS.title: ("transferred", "timeouts", "emitted", "in back-off"),
    tables.BOLTS.title: (
        *("transferred", "process ms", "acked", "retry later", "emitted", "retried", "step ms"),
        *("steps/s", "in steps of", "retrying"),
    ),
    tables.ACKER.title: ("updates", "memory", "late"),
    tables.WINDOWS.title: ("failed calls", "bad timestamps", "held", "watermark"),
    tables.ONCE.title: ("maybe too old", "no identity"),
    tables.QUEUES.title: ("delayed", "out/s", "in/s", "use"),
    tables.OWN.title: ("feed entries", "oldest waiting", "in back-off"),
    tables.TOPOLOGIES.title: ("last run", "driver"),
}


def window_named(name: str) -> Window:
    """Return the window of this name. Raises UsageError if there is none."""
    if name not in WINDOWS:
        raise UsageError(f"there is no window {name!r}; choose {', '.join(WINDOWS)}")
    return WINDOWS[name]


def run_top(addresses: Addresses, topology: str, window: Window, stopped: threading.Event) -> None:
    """Show a topology every second until ``stopped``; only once if the output is not a terminal."""
    console = Console()
    with closing(Watcher(addresses)) as watcher:
        if not console.is_terminal:
            console.print(view_of(watcher.look(topology, window), window))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not stopped.is_set():
                view = view_of(watcher.look(topology, window), window)
                live.update(_Screenful(view, topology), refresh=True)
                stopped.wait(_LOOK_S)


class _Screenful:
    """The first lines of a view; if there are more, the last line says so."""

    def __init__(self, view: RenderableType, topology: str) -> None:
        self._view = view
        self._topology = topology

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._view, options, pad=False)
        shown = lines if len(lines) <= console.height else lines[: console.height - 1]
        yield Segments([part for line in shown for part in (*line, Segment.line())])
        if left := len(lines) - len(shown):
            yield cell(f"and {left} more lines: tiercel top {self._topology} | less", "dim")


def view_of(look: Look, window: Window) -> RenderableType:
    """Render one reading."""
    if look.overview is None:
        return Group(
            *(
                cell(line, "bold red")
                for line in look.problems.lines or ["the topology is no longer known"]
            )
        )
    name = next(name for name, each in WINDOWS.items() if each is window)
    return top_view(look.overview, name, look.health)


def top_view(overview: Overview, window: str, health: Health) -> RenderableType:
    """Render everything about a topology, from top to bottom."""
    heading = cell(overview.name, "bold")
    heading.append(
        f"  {overview.state}  {window} ({tables.span(overview.seconds)} counted)  ", "not bold"
    )
    heading.append(health.badge, _LEVELS.get(health.grade, "not bold"))
    parts: list[RenderableType] = [heading]
    parts += [cell(each.sentence, _LEVELS[each.level]) for each in health.findings[:_FINDINGS]]
    if (left := len(health.findings) - _FINDINGS) > 0:
        parts.append(cell(f"and {left} more", "dim"))
    if overview.executors_said:
        parts.append(cell(overview.executors_said, "not bold"))
    parts += [fitting(_SPOUTS, overview.spouts), fitting(_BOLTS, overview.bolts)]
    ill = {each.component for each in health.findings if each.level is Grade.ILL}
    parts += [
        fitting(
            _INBOXES,
            overview.bolts,
            lambda column, row: column == "without a process" and row.name in ill,
        ),
        fitting(_ACKER, [overview.acker]),
    ]
    if overview.windows:
        parts.append(fitting(tables.WINDOWS, overview.windows))
    if overview.once:
        parts.append(fitting(tables.ONCE, overview.once))
    if overview.queue_rows:
        parts.append(depth_table(overview.queue_rows))
    parts.append(own_table([overview.own]))
    errors = overview.errors[:5]
    parts.append(fitting(tables.ERRORS, errors) if errors else cell("no errors", "dim"))
    return Group(*parts)


def status_text(topology: str, look: Look) -> str:
    """Content of ``tiercel status`` for one topology: its health, then one line per finding."""
    order = "" if look.overview is None else f" (ordered: {look.overview.ordered.value})"
    lines = [
        f"{topology}: {each.level.label} {each.kind.value}: {each.sentence}"
        for each in look.health.findings
    ]
    return "\n".join([f"{topology}: {look.health.badge}{order}", *lines])


def status_json(topology: str, look: Look) -> dict[str, Any]:
    """Return the object of ``tiercel status --json``."""
    seen = look.overview
    return {
        "topology": topology,
        "health": look.health.grade.label,
        "ordered": None if seen is None else seen.ordered.value,
        "running": None if seen is None else seen.running,
        "findings": [
            {
                "kind": each.kind.value,
                "level": each.level.label,
                "component": each.component,
                "queue": each.queue,
                "reason": each.reason,
                "since": None if each.since is None else each.since.isoformat(),
            }
            for each in look.health.findings
        ],
    }


def survey_view(survey: Survey) -> RenderableType:
    """Content of ``tiercel depths``."""
    parts: list[RenderableType] = [depth_table(survey.queues)] if survey.queues else []
    if survey.lags:
        parts.append(cell(_LAG, "dim"))
    if survey.own:
        parts.append(own_table(survey.own))
    style = "dim" if survey.complete else _ALARM
    parts += [cell(problem, style) for problem in survey.problems]
    return Group(*parts)


def depth_table(found: Iterable[QueueRow]) -> RenderableType:
    """Return the table of queues; unknown figures are question marks."""
    return fitting(
        tables.QUEUES,
        found,
        lambda column, row: column == "dead letters" and bool(row.depth.dead_lettered),
    )


def own_table(found: Iterable[Own]) -> RenderableType:
    """Return the table of tiercel's own queues, one row per topology."""
    return fitting(tables.OWN, found)


def error_table(found: Sequence[_Found]) -> Table:
    """Content of ``tiercel errors``; with a column for the topology if there are several."""
    several = len({topology for topology, _ in found}) > 1
    time, *others = map(_of_error, tables.ERRORS.columns)
    topology = (
        [tables.Column[_Found]("topology", lambda row: row[0], tables.Kind.TEXT)] if several else []
    )
    return table_of(tables.TableKind(tables.ERRORS.title, (time, *topology, *others)), found)


def _of_error(column: tables.Column[ErrorReport]) -> tables.Column[_Found]:
    return tables.Column(column.name, lambda row: column.text(row[1]), column.kind)


def fitting(
    kind: tables.TableKind[R], rows: Iterable[R], alarms: Callable[[str, R], bool] | None = None
) -> RenderableType:
    """Return the table with as many columns as the terminal has room for.

    If even the narrowest table is too wide, it breaks names over lines, but never numbers.
    """
    rows = tuple(rows)
    names = {column.name for column in kind.columns}
    left_out = [name for name in _LESS.get(kind.title, ()) if name in names]
    kinds = [kind.without(*left_out[:number]) for number in range(len(left_out) + 1)]
    fitting = [table_of(each, rows, alarms, narrow=True) for each in kinds]
    return _Fitting([*fitting, table_of(kinds[-1], rows, alarms, narrow=True, break_names=True)])


class _Fitting:
    """A table without the columns that the terminal has no room for."""

    def __init__(self, kinds: Iterable[Table]) -> None:
        """``kinds`` are sorted from wide to narrow; the last one always fits."""
        self._kinds = tuple(kinds)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in self._kinds[:-1]:
            wanted = Measurement.get(console, options.update_width(_ENDLESS), table).maximum
            if wanted <= options.max_width:
                yield table
                return
        yield self._kinds[-1]


def table_of(
    kind: tables.TableKind[R],
    rows: Iterable[R],
    alarms: Callable[[str, R], bool] | None = None,
    *,
    narrow: bool = False,
    break_names: bool = False,
) -> Table:
    """Make a table; ``alarms(column_name, row)`` is True for a cell with bad news."""
    table = Table(**_NARROW) if narrow else Table()
    for column in kind.columns:
        if column.kind is tables.Kind.NUMBER:
            table.add_column(column.name.replace(" ", "\n"), justify="right", no_wrap=True)
        else:
            table.add_column(
                column.name,
                overflow="fold",
                no_wrap=column.kind is tables.Kind.NAME and not break_names,
                min_width=_DATE if column.kind is tables.Kind.MOMENT else None,
            )
    for row in rows:
        table.add_row(
            *(
                cell(column.text(row), _ALARM if alarms and alarms(column.name, row) else "")
                for column in kind.columns
            )
        )
    return table
