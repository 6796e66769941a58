"""The machine, and tables of sentences per second, CPU time and latency."""

from __future__ import annotations

from bench import figures
from bench.figures import Results
from bench.latency import RATES
from bench.page.markdown import number, table_of, with_plot

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


def machine(results: Results) -> list[str]:
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


def short(results: Results) -> list[str]:
    return table_of(
        ["the same ten-word sentences, split and counted on one machine", "sentences per second"],
        [
            [_CONTESTANTS[what], number(figures.drained(results, what, "whole_per_s"))]
            for what in _SHORT
        ],
    )


def headline(results: Results) -> list[str]:
    found = figures.headline(results)
    rows = []
    for row in figures.headlines(results):
        value = found[row.key]
        if value is None:
            continue  # its part was not run
        met = {True: "yes", False: "**no**", None: ""}[row.met(value) if row.target else None]
        asked = f"{row.sense} {row.shown(row.target)}" if row.target else ""
        rows.append([row.says, row.shown(value), asked, met])
    return table_of(["figure", "measured", "goal", "met"], rows)


def throughput(results: Results) -> list[str]:
    rows = []
    for what, says in _CONTESTANTS.items():
        whole, steady = (
            figures.drained(results, what, f"{figure}_per_s") for figure in ("whole", "steady")
        )
        rows.append(
            [
                says,
                number(whole),
                number(steady),
                number(figures.ratio(results, what, "bare"), "{:.3f}"),
            ]
        )
    return table_of(["who", "sentences/s", "steady", "/ bare consumer"], rows)


def cpu(results: Results) -> list[str]:
    rows = []
    for what, says in _CONTESTANTS.items():
        found = {
            role: cpu for role, cpu in figures.cpu_per_message(results, what).items() if cpu >= 0.5
        }
        parts = ", ".join(f"{role} {cpu:,.0f}" for role, cpu in found.items())
        rows.append([says, number(sum(found.values()) or None), parts])
    table = table_of(["who", "µs of CPU per sentence", "of that"], rows)
    return table and [table[0], "| --- | ---: | --- |", *table[2:]]


def latency(results: Results) -> list[str]:
    forms = {
        "p50_ms": "{:,.0f} ms",
        "p99_ms": "{:,.0f} ms",
        "p999_ms": "{:,.0f} ms",
        "cores": "{:.2f}",
        "late_ms": "{:.1f} ms",
        "bare_p50_ms": "{:.1f} ms",
        "bare_p99_ms": "{:.1f} ms",
    }
    heads = ["p50", "p99", "p99.9", "cores", "publisher late, p99", "bare consumer, p50", "p99"]
    table = table_of(
        ["messages per second", *heads],
        [
            [
                f"{rate:,}",
                *(
                    number(figures.latency(results, rate, figure), form)
                    for figure, form in forms.items()
                ),
            ]
            for rate in RATES
        ],
    )
    return with_plot(table, "latency by messages per second", "latency.png")
