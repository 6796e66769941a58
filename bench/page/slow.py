"""Tables of slow work."""

from __future__ import annotations

from bench import figures
from bench.figures import Results
from bench.page.markdown import number, table_of


def slow(results: Results) -> list[str]:
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
                f"{number(messages)} messages of {number(work_ms)} ms, {number(tasks)} "
                f"tasks; {says}"
            )
            rows.append([load, number(wall_s, "{:,.1f} s"), number(ratio, "{:.2f}")])
    return table_of(
        ["slow work", "from the first delivery to the last ack", "tasks x time / work"], rows
    )


def beside(results: Results) -> list[str]:
    forms = ("p50_ms", "p99_ms", "max_ms")
    found = [number(figures.slow(results, "beside", figure), "{:,.1f} ms") for figure in forms]
    return table_of(
        ["beside one long tuple", "p50", "p99", "max"], [["all other messages", *found]]
    )


def uneven(results: Results) -> list[str]:
    rows = []
    for kind, says in (
        ("exponential", "exponential"),
        ("heavy", "one in twenty takes 2 s, the others 105 ms"),
    ):
        ours, celery, ideal = (
            " / ".join(
                number(figures.uneven(results, kind, f"{who}{figure}_ms"), "{:,.0f}")
                for figure in ("p50", "p99")
            )
            for who in ("", "celery_", "ideal_")
        )
        rows.append([says, f"{ours} ms", f"{celery} ms", f"{ideal} ms"])
    if not figures.rounds_of(results, "uneven"):
        return []
    return table_of(
        [
            "work of 0.2 s on average: p50 / p99",
            "tiercel",
            "Celery, prefetch 1",
            "one queue, simulated",
        ],
        rows,
    )


def curve(results: Results) -> list[str]:
    rows = [row for row in figures.slow_rounds(results, "curve") if "share" in row]
    by_place = {(row["tasks"], row["work_ms"]): row for row in rows}
    tasks = sorted({row["tasks"] for row in rows})
    work = sorted({row["work_ms"] for row in rows})

    def cell(place: tuple[float, float]) -> str:
        row = by_place.get(place)
        return f"{row['messages_per_s']:,.1f} ({row['share']:.0%})" if row else "-"

    table = table_of(
        ["tasks", *(f"{each:,g} ms per tuple" for each in work)],
        [[f"{count:,}", *(cell((count, each)) for each in work)] for count in tasks],
    )
    return (
        [*table, "", "![share of tasks / time by tasks](images/growth-slow.png)"] if table else []
    )
