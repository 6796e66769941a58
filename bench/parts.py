"""The parts of the benchmark and their sizes; each part returns data for ``results.json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench import activity, contest, growth, inbox, latency, ledger, scaling, standby, throughput
from bench.machine import load
from bench.rig import BenchError, running, servers
from bench.server import redis_server
from bench.slow.amount import RAISING, Slow
from bench.slow.beside import Beside, beside
from bench.slow.curve import curve
from bench.slow.drain import SlowDrained, drain
from bench.slow.uneven import KINDS, half_speed, uneven
from bench.storm import beside as storm
from bench.storm.build import StormMissingError, classpath
from bench.throughput import Drained
from bench.tuples import price
from bench.tuples.hot_spots import hot_spots
from tiercel.workers.config import Settings

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of all parts."""

    rounds: int
    sentences: int
    # Sentences for the peers with one task per word: enough for ten seconds or more.
    tasks: dict[str, int]
    rates: tuple[int, ...]
    latency_s: float
    # Seconds of the bare consumer at each rate.
    bare_s: float
    slow: Slow
    storm: storm.StormAmount
    inbox: inbox.Amount
    pending: tuple[int, ...]
    trees: tuple[int, ...]
    curves: tuple[str, ...]
    idle_s: float


FULL = Scale(
    rounds=3,
    sentences=300_000,
    tasks={"celery": 1_500, "dramatiq": 4_000},
    rates=latency.RATES,
    latency_s=25,
    bare_s=10,
    slow=Slow(),
    storm=storm.StormAmount(),
    inbox=inbox.Amount(),
    pending=ledger.PENDING,
    trees=ledger.TREES,
    curves=tuple(growth.CURVES),
    idle_s=20,
)
QUICK = Scale(
    rounds=1,
    sentences=80_000,
    tasks={"celery": 500, "dramatiq": 1_500},
    rates=latency.RATES,
    latency_s=8,
    bare_s=4,
    # As many messages as in the full scale, so that chance in shuffling matters no more.
    slow=Slow(work_ms=100, curve_ms=(1_000, 10), curve_tasks=(4, 16), curve_s=3.0, uneven_s=30.0),
    # The figures of the first table are ratios of throughput.
    storm=storm.StormAmount(rates={}, uneven_s=0.0),
    inbox=inbox.Amount(calls=300, steps=300, hop_s=2.0, idle_s=2.0),
    pending=(ledger.HEADLINE,),
    trees=(),
    curves=(),
    idle_s=20,
)


def measure_throughput(scale: Scale, peers: str | None, say: Say) -> Any:
    """Measure rounds of {contestant: measurement or error}, each round on new servers."""
    found = []
    for number in range(scale.rounds):
        with servers() as settings:
            of_round: dict[str, Any] = {}
            for what, run in contestants(settings, scale, peers).items():
                try:
                    drained = run()
                except BenchError as error:
                    say(f"round {number + 1}: {what}: {error}")
                    of_round[what] = {"error": str(error)}
                else:
                    say(f"round {number + 1}: {drained.line()}")
                    of_round[what] = asdict(drained)
        found.append(of_round)
    return found


def contestants(
    settings: Settings, scale: Scale, peers: str | None
) -> dict[str, Callable[[], Drained]]:
    """Return the contestants by name.

    Celery and Dramatiq are included only if ``peers`` is a Python that has them installed.
    """
    count = scale.sentences
    all_of_us: dict[str, Callable[[], Drained]] = {
        "bare": lambda: contest.consumer("bare", settings, count),
        "arrow": lambda: throughput.tiercel("arrow", settings, count),
        "basic": lambda: throughput.tiercel("basic", settings, count),
        "untracked": lambda: throughput.tiercel("untracked", settings, count),
        # It has a tenth of the speed: a fifth of the sentences takes long enough.
        "inline": lambda: contest.consumer("inline", settings, count // 5),
    }
    if peers is not None:
        python = peers
        all_of_us["celery"] = lambda: contest.task_queue(
            "celery", settings, scale.tasks["celery"], python
        )
        all_of_us["dramatiq"] = lambda: contest.task_queue(
            "dramatiq", settings, scale.tasks["dramatiq"], python
        )
    return all_of_us


def measure_latency(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure rounds of one row per rate, with the figures of the bare consumer.

    Each round starts a new topology.
    """
    found = []
    for number in range(scale.rounds):
        with servers() as settings:
            bare = {
                rate: latency.measure_bare(settings, rate, scale.bare_s) for rate in scale.rates
            }
            rows = []
            with running("basic", settings, timed=True) as topology:
                topology.warm_up()
                for rate in scale.rates:
                    row = latency.measure(topology, rate, scale.latency_s)
                    say(f"round {number + 1}: {row.line()}")
                    say(f"round {number + 1}: bare consumer {bare[rate].line().strip()}")
                    bare_row = {
                        f"bare_{name}": getattr(bare[rate], name) for name in ("p50_ms", "p99_ms")
                    }
                    rows.append({**asdict(row), **bare_row})
        found.append(rows)
    return found


def measure_slow(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure slow work by kind, with a row or an error per round, and the curve."""
    how = scale.slow
    found: dict[str, list[Any]] = {"drain": [], "raising": [], "beside": [], "curve": []}
    for number in range(scale.rounds):
        with servers() as settings:
            for what, run in slow_runs(settings, how, first=number == 0).items():
                try:
                    row = run()
                except BenchError as error:
                    say(f"round {number + 1}: slow work, {what}: {error}")
                    found[what].append({"error": str(error)})
                else:
                    say(f"round {number + 1}: {row.line()}")
                    found[what].append(asdict(row))
    with servers() as settings:
        found["curve"] = curve(settings, how, say)
    return found


def measure_uneven(scale: Scale, peers: str | None, say: Say) -> Any:
    """Measure latencies by kind of uneven work, and how tasks share other work."""
    how = scale.slow
    of_round: dict[str, Any] = {}
    with servers() as settings:
        for kind in KINDS:
            row = uneven(settings, how, kind, peers)
            say(row.line())
            of_round[kind] = asdict(row)
        quiet = beside(settings, how)
        say(quiet.line())
        of_round["beside"] = asdict(quiet)
        wall = drain(settings, replace(how, work_ms=how.wall_ms))
        say(wall.line())
        of_round["slow_wall_ratio"] = wall.ratio
        of_round["half_speed_ratio"] = half_speed(settings, how)
        say(f"one task at half speed: {of_round['half_speed_ratio']:.2f} of the sum of speeds")
        two, eight = (
            growth.point(settings, growth.CURVES["bolts"], tasks, runs=1)["messages_per_s"]
            for tasks in (2, 8)
        )
        of_round["tasks_8_to_2"] = eight / two
        say(f"8 tasks of each bolt / 2: {eight:,.0f} / {two:,.0f} messages per second")
    return [{**of_round, "load": load()}]


def slow_runs(
    settings: Settings, how: Slow, *, first: bool
) -> dict[str, Callable[[], SlowDrained | Beside]]:
    """Return the runs of one round; the run that raises is measured only in the first one."""
    runs: dict[str, Callable[[], SlowDrained | Beside]] = {
        "drain": lambda: drain(settings, how),
        "beside": lambda: beside(settings, how),
    }
    if first:
        runs["raising"] = lambda: drain(settings, how, RAISING)
    return runs


def measure_storm(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure rounds of tiercel and Storm, and uneven work in Storm; empty without Storm."""
    try:
        classpath()
    except StormMissingError as missing:
        say(f"Storm is left out: {missing}")
        return {}
    rounds = []
    for number in range(scale.rounds):
        with servers() as settings:
            of_round: dict[str, Any] = {}
            for what, run in storm.contestants(settings, scale.sentences, scale.storm).items():
                try:
                    found = run()
                except BenchError as error:
                    say(f"round {number + 1}: {what}: {error}")
                    of_round[what] = {"error": str(error)}
                else:
                    for line in found.lines():
                        say(f"round {number + 1}: {line}")
                    of_round[what] = found.row()
        rounds.append(of_round)
    return {"rounds": rounds, "uneven": _storm_uneven(scale, say)}


def _storm_uneven(scale: Scale, say: Say) -> Any:
    """Measure a row or an error per kind of uneven work."""
    rows: dict[str, Any] = {}
    if scale.storm.uneven_s:
        with servers() as settings:
            for kind in KINDS:
                try:
                    row = storm.uneven(settings, scale.slow.tasks, kind, scale.storm.uneven_s)
                except BenchError as error:
                    say(f"uneven work, {kind}: {error}")
                    rows[kind] = {"error": str(error)}
                else:
                    say(row.line())
                    rows[kind] = asdict(row)
    return rows


def measure_inbox(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure the costs of steps, appends and hops, and derive the costs of the scaling model."""
    with redis_server(None) as url:
        found = inbox.measure(url, scale.inbox)
    for line in inbox.lines(found):
        say(line)
    costs = scaling.costs_of(found)
    say(", ".join(f"{name} {value:,.4g}" for name, value in costs.items()))
    return {**found, "costs": costs, "parser": inbox.parser()}


def measure_ledger(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure rounds of rows by pending roots and by tree size."""
    found = []
    for number in range(scale.rounds):
        with redis_server(None) as url:
            rows = ledger.measure(url, scale.pending, scale.trees)
        for line in ledger.lines(rows):
            say(f"round {number + 1}: {line}")
        found.append(rows)
    return found


def measure_tuples(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure the cost of a tuple, a median over rounds; a full run also has a profile."""
    found: dict[str, Any] = {"price": price.figures()}
    for line in price.lines(found["price"]):
        say(line)
    if scale.rounds > 1:
        found["profile"] = {kind: hot_spots(kind) for kind in ("BasicBolt", "ArrowBolt")}
    return found


def measure_activity(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure microseconds per sentence by activity, one row per round."""
    found = []
    for number in range(scale.rounds):
        with servers() as settings:
            row = activity.measure(settings, scale.sentences)
        for line in activity.lines(row):
            say(f"round {number + 1}: {line}")
        found.append(row)
    return found


def measure_growth(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure one row per point of each curve, a median over queues."""
    if not scale.curves:
        return {}
    with servers() as settings:
        return growth.measure(settings, scale.curves, scale.rounds, say)


def measure_standby(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Measure rounds of start and idleness."""
    found = []
    for number in range(scale.rounds):
        with servers() as settings:
            row = standby.measure(settings, scale.idle_s)
        say(f"round {number + 1}: {row.line()}")
        found.append(asdict(row))
    return found


PARTS: dict[str, Callable[[Scale, str | None, Say], Any]] = {
    "throughput": measure_throughput,
    "latency": measure_latency,
    "slow": measure_slow,
    "uneven": measure_uneven,
    "storm": measure_storm,
    "ledger": measure_ledger,
    "inbox": measure_inbox,
    "tuples": measure_tuples,
    "activity": measure_activity,
    "standby": measure_standby,
    "growth": measure_growth,
}
