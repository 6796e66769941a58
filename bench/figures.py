"""Headline figures from the measurements. Pure functions.

Figures are medians over rounds; ratios are taken within a round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.latency import ALONE
from bench.ledger import HEADLINE as PENDING
from bench.processes import BENCHMARK

Results = Mapping[str, Any]
# None if it was not measured, or failed.
Figure = float | None


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One headline figure, with its goal."""

    key: str
    says: str
    target: float
    sense: Literal["at least", "at most"]
    form: str
    digits: int

    def shown(self, value: Figure) -> str:
        """Format a value of this figure, or a dash for None."""
        return "-" if value is None else self.form.format(value)

    def met(self, value: Figure) -> bool | None:
        """Return True if the value meets the target; None if there is no value."""
        if value is None:
            return None
        return value >= self.target if self.sense == "at least" else value <= self.target


def _row(  # noqa: PLR0913 - the columns of the table below
    key: str, says: str, target: float, form: str, digits: int = 2, *, low: bool = False
) -> Headline:
    return Headline(
        key=key,
        says=says,
        target=target,
        sense="at most" if low else "at least",
        form=form,
        digits=digits,
    )


# The goals of latencies are for a machine whose bare consumer processes this many messages per
# second; on a slower machine they are longer in proportion.
REFERENCE_PER_S = 50_000

HEADLINES = (
    _row("arrow_ratio", "`ArrowBolt` / a bare consumer", 0.75, "{:.2f}"),
    _row("basic_ratio", "`BasicBolt` / a bare consumer", 0.6, "{:.2f}"),
    _row("tracked_ratio", "tracked / untracked (`ackers=0`)", 0.9, "{:.2f}"),
    _row("inline_ratio", "`BasicBolt` / a hand-written consumer that counts inline", 0, "{:.1f}"),
    _row("celery_ratio", "`BasicBolt` / Celery, a task per word", 80, "{:.0f}", 1),
    _row("dramatiq_ratio", "`BasicBolt` / Dramatiq, a task per word", 35, "{:.0f}", 1),
    _row("arrow_storm_ratio", "`ArrowBolt` / Storm, bolts in Java", 1.0, "{:.2f}"),
    _row("storm_python_ratio", "`BasicBolt` / Storm, bolts in Python", 12, "{:.1f}", 1),
    _row(
        "slow_bolt_ratio",
        "slow bolt: wall time / (seconds of work / tasks)",
        1.15,
        "{:.2f}",
        low=True,
    ),
    _row(
        "beside_slow_all_p99_ms",
        "beside one tuple of 10 s: p99 of all other messages",
        60,
        "{:.0f} ms",
        1,
        low=True,
    ),
    _row("uneven_exp_p50", "uneven work, exponential: p50 / Celery's", 1.0, "{:.2f}", low=True),
    _row("uneven_exp_p99", "uneven work, exponential: p99 / Celery's", 1.0, "{:.2f}", low=True),
    _row(
        "uneven_heavy_p50",
        "uneven work, one in twenty takes 2 s: p50 / Celery's",
        1.0,
        "{:.2f}",
        low=True,
    ),
    _row(
        "uneven_heavy_p99",
        "uneven work, one in twenty takes 2 s: p99 / Celery's",
        1.0,
        "{:.2f}",
        low=True,
    ),
    _row(
        "half_speed_ratio",
        "four tasks, one at half speed: throughput / sum of speeds",
        0.95,
        "{:.2f}",
    ),
    _row(
        "slow_wall_ratio",
        "600 tuples of 0.25 s, four tasks: wall time / (work / tasks)",
        1.02,
        "{:.3f}",
        3,
        low=True,
    ),
    _row("tasks_8_to_2", "8 tasks of each bolt / 2, throughput", 0.85, "{:.2f}"),
    _row("p50_ms_alone", "latency of a message that is alone, p50", 4, "{:.1f} ms", 1, low=True),
    _row("p50_ms_100", "latency at 100 messages per second, p50", 5, "{:.0f} ms", 1, low=True),
    _row("p99_ms_100", "latency at 100 messages per second, p99", 15, "{:.0f} ms", 1, low=True),
    _row("p50_ms", "latency at 1,000 messages per second, p50", 8, "{:.0f} ms", 1, low=True),
    _row("p99_ms", "latency at 1,000 messages per second, p99", 25, "{:.0f} ms", 1, low=True),
    _row("p50_ms_5000", "latency at 5,000 messages per second, p50", 20, "{:.0f} ms", 1, low=True),
    _row("p99_ms_5000", "latency at 5,000 messages per second, p99", 60, "{:.0f} ms", 1, low=True),
    _row(
        "cores_100",
        "cores busy at 100 messages per second, with the servers",
        0.4,
        "{:.2f}",
        low=True,
    ),
    _row(
        "bare_p50_ms", "the same of the bare consumer, at 1,000, p50", 0, "{:.1f} ms", 2, low=True
    ),
    _row(
        "bare_p99_ms", "the same of the bare consumer, at 1,000, p99", 0, "{:.1f} ms", 2, low=True
    ),
    _row("bare_per_s", "the bare consumer: messages per second", 0, "{:,.0f}", 0),
    _row("ledger_updates_per_s", "ledger: root updates per second", 300_000, "{:,.0f}", 0),
    _row("ledger_bytes_per_root", "ledger: bytes per pending root", 28, "{:.1f}", 1, low=True),
    _row(
        "arrow_tuples_per_s",
        "`ArrowBolt`: tuples per second inside a task, on a core",
        4_000_000,
        "{:,.0f}",
        0,
    ),
    _row(
        "basic_tuples_per_s",
        "`BasicBolt`: tuples per second inside a task, on a core",
        600_000,
        "{:,.0f}",
        0,
    ),
    _row(
        "cpu_us_basic",
        "`BasicBolt`: CPU of all processes per sentence",
        75,
        "{:.0f} µs",
        1,
        low=True,
    ),
    _row("depth_ratio", "eight bolts in a row / one, throughput", 0.8, "{:.2f}"),
    _row("idle_cpu_percent", "idle: CPU of all processes, of one core", 3, "{:.1f} %", 1, low=True),
    _row("first_ack_s", "from the command to the first ack", 7, "{:.1f} s", 1, low=True),
)
_LATENCIES = {
    "p50_ms_alone": (ALONE, "p50_ms"),
    "p50_ms_100": (100, "p50_ms"),
    "p99_ms_100": (100, "p99_ms"),
    "p50_ms": (1_000, "p50_ms"),
    "p99_ms": (1_000, "p99_ms"),
    "p50_ms_5000": (5_000, "p50_ms"),
    "p99_ms_5000": (5_000, "p99_ms"),
    "cores_100": (100, "cores"),
    "bare_p50_ms": (1_000, "bare_p50_ms"),
    "bare_p99_ms": (1_000, "bare_p99_ms"),
}
_SCALED = frozenset(key for key in _LATENCIES if "_ms" in key and not key.startswith("bare"))


def headlines(results: Results) -> tuple[Headline, ...]:
    """Return the headlines with the goals for this machine."""
    factor = slower(results)
    return tuple(
        replace(row, target=row.target * factor) if row.key in _SCALED else row for row in HEADLINES
    )


def slower(results: Results) -> float:
    """Return the factor of latency goals on this machine, at least 1."""
    found = drained(results, "bare", "whole_per_s")
    return 1.0 if found is None else max(1.0, REFERENCE_PER_S / found)


def headline(results: Results) -> dict[str, Figure]:
    """Return the headline figures by key, rounded."""
    basic_us = [us for role, us in cpu_per_message(results, "basic").items() if role != BENCHMARK]
    found: dict[str, Figure] = {
        "arrow_ratio": ratio(results, "arrow", "bare"),
        "basic_ratio": ratio(results, "basic", "bare"),
        "tracked_ratio": ratio(results, "basic", "untracked"),
        "inline_ratio": ratio(results, "basic", "inline"),
        "celery_ratio": ratio(results, "basic", "celery"),
        "dramatiq_ratio": ratio(results, "basic", "dramatiq"),
        "arrow_storm_ratio": ratio_of(storm_rounds(results), "arrow", "java"),
        "storm_python_ratio": ratio_of(storm_rounds(results), "basic", "python"),
        "slow_bolt_ratio": slow(results, "drain", "ratio"),
        "beside_slow_all_p99_ms": beside_p99_ms(results),
        "uneven_exp_p50": uneven_ratio(results, "exponential", "p50_ms"),
        "uneven_exp_p99": uneven_ratio(results, "exponential", "p99_ms"),
        "uneven_heavy_p50": uneven_ratio(results, "heavy", "p50_ms"),
        "uneven_heavy_p99": uneven_ratio(results, "heavy", "p99_ms"),
        **{
            key: shared(results, key)
            for key in ("half_speed_ratio", "slow_wall_ratio", "tasks_8_to_2")
        },
        **{key: latency(results, *which) for key, which in _LATENCIES.items()},
        "bare_per_s": drained(results, "bare", "whole_per_s"),
        "ledger_updates_per_s": ledger(results, PENDING, "updates_per_s"),
        "ledger_bytes_per_root": ledger(results, PENDING, "bytes_per_root"),
        "arrow_tuples_per_s": price(results, "ArrowBolt", "tuples_per_s"),
        "basic_tuples_per_s": price(results, "BasicBolt", "tuples_per_s"),
        "cpu_us_basic": sum(basic_us) or None,
        "depth_ratio": depth_ratio(results),
        "idle_cpu_percent": standby(results, "idle_percent"),
        "first_ack_s": standby(results, "first_ack_s"),
    }
    digits = {row.key: row.digits for row in HEADLINES}
    return {
        key: None if value is None else round(value, digits[key] or None)
        for key, value in found.items()
    }


def rounds_of(results: Results, part: str) -> Any:
    """Return the rounds that a part measured; empty if it did not run, or failed."""
    return results.get("parts", {}).get(part, {}).get("found") or []


def ratio(results: Results, what: str, beside: str) -> Figure:
    """Return the ratio of two contestants' rates, the median over rounds."""
    return ratio_of(rounds_of(results, "throughput"), what, beside)


def ratio_of(rounds: Iterable[Mapping[str, Any]], what: str, beside: str) -> Figure:
    """Return the ratio of two contestants' rates in these rounds, their median."""
    return _median(
        of_round[what]["whole_per_s"] / of_round[beside]["whole_per_s"]
        for of_round in rounds
        if all("whole_per_s" in of_round.get(each, {}) for each in (what, beside))
    )


def drained(results: Results, what: str, figure: str) -> Figure:
    """Return ``whole_per_s`` or ``steady_per_s`` of a contestant."""
    return _of(
        rounds_of(results, "throughput"), lambda of_round: of_round.get(what, {}).get(figure)
    )


def cpu_per_message(results: Results, what: str) -> dict[str, float]:
    """Return microseconds of CPU per sentence by kind of process, the largest first."""
    return cpu_of(rounds_of(results, "throughput"), what)


def cpu_of(of_rounds: Iterable[Mapping[str, Any]], what: str) -> dict[str, float]:
    """Return microseconds of CPU per sentence in these rounds, by kind of process."""
    rounds = [of_round[what] for of_round in of_rounds if "cpu_s" in of_round.get(what, {})]
    roles = {role for of_round in rounds for role in of_round["cpu_s"]}
    found = {
        role: statistics.median(
            1e6 * of_round["cpu_s"].get(role, 0.0) / of_round["sentences"] for of_round in rounds
        )
        for role in roles
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def latency(results: Results, rate: int, figure: str) -> Figure:
    """Return a latency in milliseconds, or the busy cores, at this rate."""
    return _of(rounds_of(results, "latency"), lambda rows: _pick(rows, "rate", rate, figure))


def slow(results: Results, what: str, figure: str) -> Figure:
    """Return a figure of ``drain``, ``raising`` or ``beside``, ignoring failed runs."""
    return _of(slow_rounds(results, what), lambda row: row.get(figure))


def beside_p99_ms(results: Results) -> Figure:
    """Return the p99 of all other messages beside a long one, from both parts that measure it."""
    rows = slow_rounds(results, "beside")
    uneven_rows = [one["beside"] for one in rounds_of(results, "uneven") if "beside" in one]
    return _of([*rows, *uneven_rows], lambda row: row.get("p99_ms"))


def slow_rounds(results: Results, what: str) -> list[Mapping[str, Any]]:
    """Return one row per round for a kind of slow work."""
    found: list[Mapping[str, Any]] = dict(rounds_of(results, "slow") or {}).get(what, [])
    return found


def uneven(results: Results, kind: str, figure: str) -> Figure:
    """Return a latency of uneven work, in milliseconds."""
    return _of(rounds_of(results, "uneven"), lambda of_round: of_round[kind].get(figure))


def uneven_ratio(results: Results, kind: str, figure: str) -> Figure:
    """Return a latency of uneven work divided by Celery's in the same round."""
    return _median(
        of_round[kind][figure] / of_round[kind][f"celery_{figure}"]
        for of_round in rounds_of(results, "uneven")
        if of_round[kind][f"celery_{figure}"]
    )


def storm_rounds(results: Results) -> list[Mapping[str, Any]]:
    """Return the rounds of tiercel beside Storm; none where Storm was left out."""
    found: list[Mapping[str, Any]] = dict(rounds_of(results, "storm") or {}).get("rounds", [])
    return found


def storm(results: Results, what: str, figure: str) -> Figure:
    """Return ``whole_per_s`` or ``steady_per_s`` of a contestant beside Storm."""
    return _of(storm_rounds(results), lambda of_round: of_round.get(what, {}).get(figure))


def storm_latency(results: Results, what: str, rate: int, figure: str) -> Figure:
    """Return a latency of a contestant beside Storm at this rate, in milliseconds."""
    return _of(
        storm_rounds(results),
        lambda of_round: _pick(of_round.get(what, {}).get("latency", ()), "rate", rate, figure),
    )


def storm_uneven(results: Results, kind: str, figure: str) -> Figure:
    """Return a latency of uneven work in Storm, in milliseconds."""
    rows = dict(rounds_of(results, "storm") or {}).get("uneven", {})
    found: Figure = rows.get(kind, {}).get(figure)
    return found


def shared(results: Results, figure: str) -> Figure:
    """Return a figure of the part ``uneven`` that shows how tasks share work."""
    return _of(rounds_of(results, "uneven"), lambda of_round: of_round.get(figure))


def depth_ratio(results: Results) -> Figure:
    """Return the throughput of eight bolts in a row divided by the throughput of one."""
    rows = dict(rounds_of(results, "growth") or {}).get("depth", [])
    eight, one = (_pick(rows, "value", value, "messages_per_s") for value in (8, 1))
    return eight / one if eight is not None and one else None


def ledger(results: Results, pending: int, figure: str) -> Figure:
    """Return a figure of the ledger with this many pending roots."""
    return _of(
        rounds_of(results, "ledger"),
        lambda found: _pick(found["by_pending"], "pending", pending, figure),
    )


def tree(results: Results, tuples: int) -> Figure:
    """Return bytes per root with trees of this many tuples."""
    return _of(
        rounds_of(results, "ledger"),
        lambda found: _pick(found["by_tree"], "tuples", tuples, "bytes_per_root"),
    )


def price(results: Results, kind: str, figure: str) -> Figure:
    """Return a figure of the price of a tuple in a kind of bolt."""
    found: Figure = (
        dict(rounds_of(results, "tuples") or {}).get("price", {}).get(kind, {}).get(figure)
    )
    return found


def activities(results: Results) -> dict[str, float]:
    """Return microseconds of CPU per sentence by activity, the median over rounds."""
    rounds = rounds_of(results, "activity")
    names = dict.fromkeys(name for row in rounds for name in row)
    return {name: statistics.median(row.get(name, 0.0) for row in rounds) for name in names}


def standby(results: Results, figure: str) -> Figure:
    """Return a figure of start and idleness."""
    return _of(rounds_of(results, "standby"), lambda row: row[figure])


def _pick(rows: Iterable[Mapping[str, Any]], key: str, value: float, figure: str) -> Figure:
    return next((row.get(figure) for row in rows if row[key] == value), None)


def _of(rounds: Iterable[Any], figure: Callable[[Any], Figure]) -> Figure:
    return _median(value for value in map(figure, rounds) if value is not None)


def _median(values: Iterable[float]) -> Figure:
    found = list(values)
    return statistics.median(found) if found else None
