"""From what was measured to the figures that count: medians over rounds, ratios taken inside a round. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench.ledger import HEADLINE as PENDING

Results = Mapping[str, Any]
Figure = float | None
"""None where it was not measured, or failed."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One figure of the last line."""

    key: str
    says: str
    target: float
    sense: Literal["at least", "at most"]
    form: str
    digits: int

    def shown(self, value: Figure) -> str:
        """For people."""
        return "-" if value is None else self.form.format(value)

    def met(self, value: Figure) -> bool | None:
        """Whether it is as good as was asked for; None if it is not known."""
        if value is None:
            return None
        return value >= self.target if self.sense == "at least" else value <= self.target


def _row(  # noqa: PLR0913 - the columns of the table below
    key: str, says: str, target: float, form: str, digits: int = 2, *, low: bool = False
) -> Headline:
    return Headline(key=key, says=says, target=target, sense="at most" if low else "at least", form=form, digits=digits)


HEADLINES = (
    _row("arrow_ratio", "`ArrowBolt` / a bare consumer", 0.5, "{:.2f}"),
    _row("basic_ratio", "`BasicBolt` / a bare consumer", 0.35, "{:.2f}"),
    _row("tracked_ratio", "tracked / untracked (`ackers=0`)", 0.85, "{:.2f}"),
    _row("inline_ratio", "`BasicBolt` / a hand-written consumer that counts inline", 0, "{:.1f}"),
    _row("celery_ratio", "`BasicBolt` / Celery, a task a word", 80, "{:.0f}", 1),
    _row("dramatiq_ratio", "`BasicBolt` / Dramatiq, a task a word", 35, "{:.0f}", 1),
    _row("p50_ms", "latency at 1,000 messages a second, p50", 150, "{:.0f} ms", 1, low=True),
    _row("p99_ms", "latency at 1,000 messages a second, p99", 350, "{:.0f} ms", 1, low=True),
    _row("ledger_updates_per_s", "ledger: root updates a second", 300_000, "{:,.0f}", 0),
    _row("ledger_bytes_per_root", "ledger: bytes a pending root", 28, "{:.1f}", 1, low=True),
    _row("arrow_tuples_per_s", "`ArrowBolt`: tuples a second inside a task, on a core", 3_000_000, "{:,.0f}", 0),
    _row("basic_tuples_per_s", "`BasicBolt`: tuples a second inside a task, on a core", 250_000, "{:,.0f}", 0),
    _row("idle_cpu_percent", "idle: CPU of all processes, of one core", 5, "{:.1f} %", 1, low=True),
    _row("first_ack_s", "from the command to the first ack", 12, "{:.1f} s", 1, low=True),
)


def headline(results: Results) -> dict[str, Figure]:
    """The figures of the last line, by key, rounded."""
    found: dict[str, Figure] = {
        "arrow_ratio": ratio(results, "arrow", "bare"),
        "basic_ratio": ratio(results, "basic", "bare"),
        "tracked_ratio": ratio(results, "basic", "untracked"),
        "inline_ratio": ratio(results, "basic", "inline"),
        "celery_ratio": ratio(results, "basic", "celery"),
        "dramatiq_ratio": ratio(results, "basic", "dramatiq"),
        "p50_ms": latency(results, 1_000, "p50_ms"),
        "p99_ms": latency(results, 1_000, "p99_ms"),
        "ledger_updates_per_s": ledger(results, PENDING, "updates_per_s"),
        "ledger_bytes_per_root": ledger(results, PENDING, "bytes_per_root"),
        "arrow_tuples_per_s": price(results, "ArrowBolt", "tuples_per_s"),
        "basic_tuples_per_s": price(results, "BasicBolt", "tuples_per_s"),
        "idle_cpu_percent": standby(results, "idle_percent"),
        "first_ack_s": standby(results, "first_ack_s"),
    }
    digits = {row.key: row.digits for row in HEADLINES}
    return {key: None if value is None else round(value, digits[key] or None) for key, value in found.items()}


def rounds_of(results: Results, part: str) -> Any:
    """What a part measured; empty if it did not run, or failed."""
    return results.get("parts", {}).get(part, {}).get("found") or []


def ratio(results: Results, what: str, beside: str) -> Figure:
    """How much faster, each time in the same round."""
    return _median(
        of_round[what]["whole_per_s"] / of_round[beside]["whole_per_s"]
        for of_round in rounds_of(results, "throughput")
        if all("whole_per_s" in of_round.get(each, {}) for each in (what, beside))
    )


def drained(results: Results, what: str, figure: str) -> Figure:
    """``whole_per_s`` or ``steady_per_s`` of a contestant."""
    return _of(rounds_of(results, "throughput"), lambda of_round: of_round.get(what, {}).get(figure))


def cpu_per_message(results: Results, what: str) -> dict[str, float]:
    """Microseconds of CPU a sentence by what a process is, the largest first."""
    rounds = [of_round[what] for of_round in rounds_of(results, "throughput") if "cpu_s" in of_round.get(what, {})]
    roles = {role for of_round in rounds for role in of_round["cpu_s"]}
    found = {
        role: statistics.median(1e6 * of_round["cpu_s"].get(role, 0.0) / of_round["sentences"] for of_round in rounds)
        for role in roles
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def latency(results: Results, rate: int, figure: str) -> Figure:
    """Milliseconds at this rate."""
    return _of(rounds_of(results, "latency"), lambda rows: _pick(rows, "rate", rate, figure))


def ledger(results: Results, pending: int, figure: str) -> Figure:
    """With so many pending roots."""
    return _of(rounds_of(results, "ledger"), lambda found: _pick(found["by_pending"], "pending", pending, figure))


def tree(results: Results, tuples: int) -> Figure:
    """Bytes a root with trees of so many tuples."""
    return _of(rounds_of(results, "ledger"), lambda found: _pick(found["by_tree"], "tuples", tuples, "bytes_per_root"))


def price(results: Results, kind: str, figure: str) -> Figure:
    """Of a kind of bolt."""
    found: Figure = dict(rounds_of(results, "tuples") or {}).get("price", {}).get(kind, {}).get(figure)
    return found


def standby(results: Results, figure: str) -> Figure:
    """Seconds to the first ack, percent while idle."""
    return _of(rounds_of(results, "standby"), lambda row: row[figure])


def _pick(rows: Iterable[Mapping[str, Any]], key: str, value: float, figure: str) -> Figure:
    return next((row[figure] for row in rows if row[key] == value), None)


def _of(rounds: Iterable[Any], figure: Callable[[Any], Figure]) -> Figure:
    return _median(value for value in map(figure, rounds) if value is not None)


def _median(values: Iterable[float]) -> Figure:
    found = list(values)
    return statistics.median(found) if found else None
