"""Tables of tiercel beside Storm in local mode."""

from __future__ import annotations

from bench import figures
from bench.figures import Figure, Results
from bench.latency import RATES
from bench.page.markdown import number, table_of

_CONTESTANTS = {
    "arrow": "tiercel, `ArrowBolt`",
    "java": "Storm, bolts in Java",
    "basic": "tiercel, `BasicBolt`",
    "python": "Storm, bolts in Python",
}
_TIMED = ("basic", "java", "python")
_KINDS = {"exponential": "exponential", "heavy": "one in twenty takes 2 s, the others 105 ms"}


def storm(results: Results) -> list[str]:
    rounds = figures.storm_rounds(results)
    rows = []
    for what, says in _CONTESTANTS.items():
        whole, steady = (
            figures.storm(results, what, f"{figure}_per_s") for figure in ("whole", "steady")
        )
        cpu = {role: us for role, us in figures.cpu_of(rounds, what).items() if us >= 0.5}
        parts = ", ".join(f"{role} {us:,.0f}" for role, us in cpu.items())
        rows.append([says, number(whole), number(steady), number(sum(cpu.values()) or None), parts])
    table = table_of(["who", "sentences/s", "steady", "µs of CPU per sentence", "of that"], rows)
    return table and [table[0], "| --- | ---: | ---: | ---: | --- |", *table[2:]]


def latency(results: Results) -> list[str]:
    def cell(what: str, rate: int) -> str:
        return _pair(
            *(figures.storm_latency(results, what, rate, each) for each in ("p50_ms", "p99_ms"))
        )

    return table_of(
        ["messages per second: p50 / p99", *(_CONTESTANTS[what] for what in _TIMED)],
        [[f"{rate:,}", *(cell(what, rate) for what in _TIMED)] for rate in RATES],
    )


def uneven(results: Results) -> list[str]:
    rows = []
    for kind, says in _KINDS.items():
        p50, p99 = (figures.storm_uneven(results, kind, each) for each in ("p50_ms", "p99_ms"))
        ours, ideal = (
            [find(results, kind, f"{who}{each}") for each in ("p50_ms", "p99_ms")]
            for find, who in ((figures.uneven, ""), (figures.storm_uneven, "ideal_"))
        )
        if None not in (p50, p99, *ours):
            rows.append([says, _pair(*ours), _pair(p50, p99), _pair(*ideal)])
    head = ["work of 0.2 s on average: p50 / p99", "tiercel", "Storm", "one queue, simulated"]
    return table_of(head, rows)


def _pair(p50: Figure, p99: Figure) -> str:
    return "-" if None in (p50, p99) else f"{number(p50)} / {number(p99)} ms"
