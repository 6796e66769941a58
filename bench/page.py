"""Writes what was measured into docs/performance.md and README.md.

Between markers: no figure there is typed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import figures
from bench.figures import Figure, Results
from bench.growth import CURVES
from bench.latency import RATES
from bench.ledger import PENDING, TREES

_CONTESTANTS = {
    "bare": "bare consumer: acks, does nothing else",
    "arrow": "tiercel, `ArrowBolt`",
    "basic": "tiercel, `BasicBolt`",
    "untracked": "tiercel, `BasicBolt`, `ackers=0`",
    "inline": "hand-written consumer, counts inline",
    "dramatiq": "Dramatiq, a task per word",
    "celery": "Celery, a task per word",
}
_SHORT = ("arrow", "basic", "bare", "inline", "dramatiq", "celery")


def blocks(results: Results) -> dict[str, list[str]]:
    """The lines of each block, by the name in its marker.

    A block without figures is left as it is.
    """
    made: dict[str, Callable[[Results], list[str]]] = {
        "machine": _machine,
        "short": _short,
        "headline": _headline,
        "throughput": _throughput,
        "cpu": _cpu,
        "latency": _latency,
        "slow": _slow,
        "beside": _beside,
        "curve": _curve,
        "ledger": _ledger,
        "trees": _trees,
        "inbox": _inbox,
        "tuples": _tuples,
        "profile": _profile,
        "growth": _growth,
    }
    written = {name: make(results) for name, make in made.items()}
    return {name: lines for name, lines in written.items() if lines}


def filled(text: str, made: dict[str, list[str]]) -> str:
    """The page with these blocks in the place of what was between their markers."""

    def fill(match: re.Match[str]) -> str:
        lines = made.get(match["name"])
        return (
            match[0] if lines is None else "\n".join([match["begin"], "", *lines, "", match["end"]])
        )

    pattern = r"(?P<begin><!-- bench:(?P<name>[a-z]+) -->)\n.*?(?P<end><!-- /bench -->)"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def write(results: Results, pages: Sequence[Path]) -> None:
    """Fill the pages in place."""
    made = blocks(results)
    for page in pages:
        page.write_text(filled(page.read_text(), made))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown; all but the first column are numbers. Nothing if no row has any."""
    known = [row for row in rows if any(cell not in ("", "-") for cell in row[1:])]
    if not known:
        return []
    rule = "| --- |" + " ---: |" * (len(head) - 1)
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in known)]


def _with_plot(table: list[str], says: str, name: str) -> list[str]:
    """A table of several rows, and the curve that they make."""
    return [*table, "", f"![{says}](images/{name})"] if len(table) > 3 else table


def _number(value: Figure, form: str = "{:,.0f}") -> str:
    return "-" if value is None else form.format(value)


def _machine(results: Results) -> list[str]:
    machine = dict(results["machine"])
    about = (
        f"{machine.pop('cores')} cores of {machine.pop('CPU')}, {machine.pop('memory')} of memory, "
        f"{machine.pop('kernel')}"
    )
    versions = ", ".join(f"{name} {version}" for name, version in machine.items())
    dates = sorted({part["measured"][:10] for part in results["parts"].values()})
    runs = " One run of each (`QUICK=1`), not a median." if results["quick"] else ""
    return [
        (
            f"Measured on {about}, with {versions}; "
            f"{' and '.join(dict.fromkeys([dates[0], dates[-1]]))}.{runs}"
        )
    ]


def _short(results: Results) -> list[str]:
    return _table(
        ["the same ten-word sentences, split and counted on one machine", "sentences per second"],
        [
            [_CONTESTANTS[what], _number(figures.drained(results, what, "whole_per_s"))]
            for what in _SHORT
        ],
    )


def _headline(results: Results) -> list[str]:
    found = figures.headline(results)
    rows = []
    for row in figures.headlines(results):
        value = found[row.key]
        met = {True: "yes", False: "**no**", None: ""}[row.met(value) if row.target else None]
        asked = f"{row.sense} {row.shown(row.target)}" if row.target else ""
        rows.append([row.says, row.shown(value), asked, met])
    return _table(["figure", "measured", "goal", "met"], rows)


def _throughput(results: Results) -> list[str]:
    rows = []
    for what, says in _CONTESTANTS.items():
        whole, steady = (
            figures.drained(results, what, f"{figure}_per_s") for figure in ("whole", "steady")
        )
        rows.append(
            [
                says,
                _number(whole),
                _number(steady),
                _number(figures.ratio(results, what, "bare"), "{:.3f}"),
            ]
        )
    return _table(["who", "sentences/s", "steady", "/ bare consumer"], rows)


def _cpu(results: Results) -> list[str]:
    rows = []
    for what, says in _CONTESTANTS.items():
        found = {
            role: cpu for role, cpu in figures.cpu_per_message(results, what).items() if cpu >= 0.5
        }
        parts = ", ".join(f"{role} {cpu:,.0f}" for role, cpu in found.items())
        rows.append([says, _number(sum(found.values()) or None), parts])
    table = _table(["who", "µs of CPU per sentence", "of that"], rows)
    return table and [table[0], "| --- | ---: | --- |", *table[2:]]


def _latency(results: Results) -> list[str]:
    forms = {
        "p50_ms": "{:,.0f} ms",
        "p99_ms": "{:,.0f} ms",
        "p999_ms": "{:,.0f} ms",
        "late_ms": "{:.1f} ms",
        "bare_p50_ms": "{:.1f} ms",
        "bare_p99_ms": "{:.1f} ms",
    }
    heads = ["p50", "p99", "p99.9", "publisher late, p99", "bare consumer, p50", "p99"]
    table = _table(
        ["messages per second", *heads],
        [
            [
                f"{rate:,}",
                *(
                    _number(figures.latency(results, rate, figure), form)
                    for figure, form in forms.items()
                ),
            ]
            for rate in RATES
        ],
    )
    return _with_plot(table, "latency by messages per second", "latency.png")


def _slow(results: Results) -> list[str]:
    rows = []
    for what, says in (
        ("drain", "none raises"),
        ("raising", "one in twenty raises the first time"),
    ):
        tasks, work_ms, messages, wall_s, ratio = (
            figures.slow(results, what, figure)
            for figure in ("tasks", "work_ms", "messages", "wall_s", "ratio")
        )
        if None not in (tasks, work_ms, messages):
            load = (
                f"{_number(messages)} messages of {_number(work_ms)} ms, {_number(tasks)} "
                f"tasks; {says}"
            )
            rows.append([load, _number(wall_s, "{:,.1f} s"), _number(ratio, "{:.2f}")])
    return _table(
        ["slow work", "from the first delivery to the last ack", "tasks x time / work"], rows
    )


def _beside(results: Results) -> list[str]:
    forms = ("p50_ms", "p99_ms", "max_ms")
    found = [_number(figures.slow(results, "beside", figure), "{:,.1f} ms") for figure in forms]
    return _table(
        ["beside one long tuple", "p50", "p99", "max"], [["messages for other tasks", *found]]
    )


def _curve(results: Results) -> list[str]:
    rows = [row for row in figures.slow_rounds(results, "curve") if "share" in row]
    by_place = {(row["tasks"], row["work_ms"]): row for row in rows}
    tasks = sorted({row["tasks"] for row in rows})
    work = sorted({row["work_ms"] for row in rows})

    def cell(place: tuple[float, float]) -> str:
        row = by_place.get(place)
        return f"{row['messages_per_s']:,.1f} ({row['share']:.0%})" if row else "-"

    table = _table(
        ["tasks", *(f"{each:,g} ms per tuple" for each in work)],
        [[f"{count:,}", *(cell((count, each)) for each in work)] for count in tasks],
    )
    return (
        [*table, "", "![share of tasks / time by tasks](images/growth-slow.png)"] if table else []
    )


def _inbox(results: Results) -> list[str]:
    found: dict[str, Any] = dict(figures.rounds_of(results, "inbox") or {})
    forms = {
        "p50_ms": "{:.3f} ms",
        "p99_ms": "{:.3f} ms",
        "client_us": "{:,.0f}",
        "server_us": "{:,.0f}",
    }
    heads = ["p50", "p99", "µs of CPU, client", "server"]
    rows = [
        [f"{says}{name}", *(_number(row.get(figure), form) for figure, form in forms.items())]
        for part, says in (
            ("calls", ""),
            ("steps", "a step of one tuple: "),
            ("hops", "a hop, tuples per second: "),
        )
        for name, row in found.get(part, {}).items()
    ]
    return _table(["what", *heads], rows)


def _ledger(results: Results) -> list[str]:
    forms = {
        "bytes_per_root": "{:.1f}",
        "updates_per_s": "{:,.0f}",
        "updates_per_core_s": "{:,.0f}",
    }
    table = _table(
        [
            "pending roots",
            "bytes per root",
            "updates/s, two writers",
            "updates/s of the server's core",
        ],
        [
            [
                f"{pending:,}",
                *(
                    _number(figures.ledger(results, pending, figure), form)
                    for figure, form in forms.items()
                ),
            ]
            for pending in PENDING
        ],
    )
    return _with_plot(table, "root updates per second by pending roots", "ledger.png")


def _trees(results: Results) -> list[str]:
    rows = [[f"{tuples:,}", _number(figures.tree(results, tuples), "{:.1f}")] for tuples in TREES]
    return _table(["tuples in a tree", "bytes per root"], rows)


def _tuples(results: Results) -> list[str]:
    forms = {
        "tuples_per_s": "{:,.0f}",
        "spout_us": "{:.2f}",
        "split_us": "{:.2f}",
        "count_us": "{:.2f}",
    }
    return _table(
        [
            "kind",
            "tuples/s on a core",
            "µs per sentence emitted",
            "µs per tuple split, in or out",
            "µs per word counted",
        ],
        [
            [
                f"`{kind}`",
                *(
                    _number(figures.price(results, kind, figure), form)
                    for figure, form in forms.items()
                ),
            ]
            for kind in ("BasicBolt", "Bolt", "ArrowBolt")
        ],
    )


def _profile(results: Results) -> list[str]:
    profiles: dict[str, Any] = dict(figures.rounds_of(results, "tuples") or {}).get("profile", {})
    lines: list[str] = []
    for kind, rows in profiles.items():
        table = _table(
            [f"`{kind}`", "% of the time"],
            [[f"`{row['function']}`", f"{row['percent']:.1f}"] for row in rows],
        )
        lines += ["", *table] if lines else table
    return lines


def _growth(results: Results) -> list[str]:
    found: dict[str, Any] = dict(figures.rounds_of(results, "growth") or {})
    lines: list[str] = []
    for name, curve in CURVES.items():
        if name not in found:
            continue
        table = _table(
            [curve.axis, "messages/s", "tuples/s"],
            [
                [
                    f"{row['value']:,}",
                    *(_number(row[f"{unit}_per_s"]) for unit in ("messages", "tuples")),
                ]
                for row in found[name]
            ],
        )
        lines += [
            *([""] if lines else []),
            *table,
            "",
            f"![{curve.unit} per second by {curve.axis}](images/growth-{name}.png)",
        ]
    return lines
