"""The parts of the benchmark: what each measures how often, as data for ``results.json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench import contest, growth, latency, ledger, standby, throughput, tuples
from bench.rig import BenchError, running, servers
from bench.server import redis_server
from bench.throughput import Drained
from workers.config import Settings

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of everything."""

    rounds: int
    sentences: int
    tasks: dict[str, int]
    """Sentences for the peers that take a task a word: enough for ten seconds or more."""
    rates: tuple[int, ...]
    latency_s: float
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
    pending=ledger.PENDING,
    trees=ledger.TREES,
    curves=tuple(growth.CURVES),
    idle_s=20,
)
QUICK = Scale(
    rounds=1,
    sentences=80_000,
    tasks={"celery": 500, "dramatiq": 1_500},
    rates=(1_000,),
    latency_s=12,
    pending=(ledger.HEADLINE,),
    trees=(),
    curves=(),
    idle_s=20,
)


def measure_throughput(scale: Scale, peers: str | None, say: Say) -> Any:
    """Rounds of {contestant: what it did, or why it counts for nothing}; each round on servers of its own."""
    found = []
    for number in range(scale.rounds):
        with servers() as settings:
            of_round: dict[str, Any] = {}
            for what, drain in contestants(settings, scale, peers).items():
                try:
                    drained = drain()
                except BenchError as error:
                    say(f"round {number + 1}: {what}: {error}")
                    of_round[what] = {"error": str(error)}
                else:
                    say(f"round {number + 1}: {drained.line()}")
                    of_round[what] = asdict(drained)
        found.append(of_round)
    return found


def contestants(settings: Settings, scale: Scale, peers: str | None) -> dict[str, Callable[[], Drained]]:
    """By name; those with a task a word only if ``peers`` names a Python that has them."""
    count = scale.sentences
    all_of_us: dict[str, Callable[[], Drained]] = {
        "bare": lambda: contest.consumer("bare", settings, count),
        "arrow": lambda: throughput.tiercel("arrow", settings, count),
        "basic": lambda: throughput.tiercel("basic", settings, count),
        "untracked": lambda: throughput.tiercel("untracked", settings, count),
        # A tenth of the speed: as long as the others with a fifth of the sentences.
        "inline": lambda: contest.consumer("inline", settings, count // 5),
    }
    if peers is not None:
        python = peers
        all_of_us["celery"] = lambda: contest.task_queue("celery", settings, scale.tasks["celery"], python)
        all_of_us["dramatiq"] = lambda: contest.task_queue("dramatiq", settings, scale.tasks["dramatiq"], python)
    return all_of_us


def measure_latency(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Rounds of one row a rate; each round is a topology of its own."""
    found = []
    for number in range(scale.rounds):
        with servers() as settings, running("basic", settings, timed=True) as topology:
            topology.warm_up()
            rows = []
            for rate in scale.rates:
                row = latency.measure(topology, rate, scale.latency_s)
                say(f"round {number + 1}: {row.line()}")
                rows.append(asdict(row))
        found.append(rows)
    return found


def measure_ledger(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Rounds of rows by pending roots and by tree size."""
    found = []
    for number in range(scale.rounds):
        with redis_server(None) as url:
            rows = ledger.measure(url, scale.pending, scale.trees)
        for line in ledger.lines(rows):
            say(f"round {number + 1}: {line}")
        found.append(rows)
    return found


def measure_tuples(scale: Scale, _peers: str | None, say: Say) -> Any:
    """What a tuple costs, a median over micro-batches; in a full run also where the time goes."""
    found: dict[str, Any] = {"price": tuples.figures()}
    for line in tuples.lines(found["price"]):
        say(line)
    if scale.rounds > 1:
        found["profile"] = {kind: tuples.hot_spots(kind) for kind in ("BasicBolt", "ArrowBolt")}
    return found


def measure_growth(scale: Scale, _peers: str | None, say: Say) -> Any:
    """One row a point of each curve, a median over queues."""
    if not scale.curves:
        return {}
    with servers() as settings:
        return growth.measure(settings, scale.curves, scale.rounds, say)


def measure_standby(scale: Scale, _peers: str | None, say: Say) -> Any:
    """Rounds of start and idleness."""
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
    "ledger": measure_ledger,
    "tuples": measure_tuples,
    "standby": measure_standby,
    "growth": measure_growth,
}
