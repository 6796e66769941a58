"""Bolts in a row that execute in one step behave like bolts with their own steps."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.inbox_cluster import InboxCluster
from tests.support.pump import Killed, Pump, Source, killed_after
from tiercel import BasicBolt, Bolt, Config, Reject, RetryLater, TopologyBuilder
from tiercel.acker.inbox.contract import Claims, Covered, decode, encode
from tiercel.acker.metrics.contract import chained_counter, total_of
from tiercel.spark_jobs.kinds import plain
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.suspects.book import REASON
from tiercel.spark_jobs.suspects.notes import ExecutionNotes

MODES = ("emit", "raise", "reject", "later", "wrong type", "side", "nothing")


@pytest.fixture(scope="module", autouse=True)
def asks_before_each_tuple():
    """The clock of these tests moves without real time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain, "ASK_S", 0.0)
        yield


class Node(BasicBolt):
    """Treats one number in three as its mode says, and emits the others."""

    output_streams: ClassVar = {"default": "n long", "side": "n long"}

    def __init__(self, mode: str, fan: int) -> None:
        self.mode = mode
        self.fan = fan

    def execute(self, tup, collector):
        n = tup["n"]
        if n % 3 == 0:
            self._odd(n, collector)
        for number in range(self.fan):
            collector.emit([self.fan * n + number])

    def _odd(self, n, collector):
        if self.mode == "raise":
            raise ValueError("odd")
        if self.mode == "reject":
            raise Reject("odd")
        if self.mode == "later":
            raise RetryLater(5, "odd")
        if self.mode == "wrong type":
            collector.emit(["odd"])
        if self.mode == "side":
            collector.emit([n], "side")


class Keep(BasicBolt):
    def execute(self, tup, collector):
        pass


def row_of(nodes, *, chaining=True, grouping="shuffle_grouping"):
    """Return a topology of these bolts in a row; ``out`` takes their emissions on side streams."""
    builder = TopologyBuilder("row", Config(chaining=chaining))
    builder.set_spout("spout", Source("n long"))
    before = "spout"
    for at, node in enumerate(nodes):
        getattr(builder.set_bolt(f"b{at}", node, parallelism=2), grouping)(before)
        before = f"b{at}"
    out = builder.set_bolt("out", Keep(), parallelism=2)
    out.fields_grouping(before, "n")
    for at in range(len(nodes)):
        out.fields_grouping(f"b{at}", "n", stream="side")
    return builder.build()


def outcome(nodes, numbers, *, chaining, grouping="shuffle_grouping"):
    """Return everything that leaves the row: trees, emissions, outcomes and counts."""
    pump = Pump(row_of(nodes, chaining=chaining, grouping=grouping))
    pump._roots = Roots()
    totals: dict[int, int] = defaultdict(int)
    applying = pump.ledger.applying

    def noted(token, updates, failures=()):
        for root, xor in zip(updates.roots.tolist(), updates.xors.tolist(), strict=True):
            totals[root] ^= xor
        return applying(token, updates, failures)

    pump.ledger.applying = noted
    pump.feed(*[[n] for n in numbers])
    pump.send()
    bolts = [task for task in pump.tasks if pump.topology.component_of(task) != "out"]
    while pump.work(*bolts):
        continue
    left = [
        (edge, root, n)
        for chunk in pump.chunks("out")
        for edge, root, n in zip(
            chunk.lineage.edges.tolist(),
            chunk.lineage.roots.tolist(),
            chunk.values.column("n").to_pylist(),
            strict=True,
        )
    ]
    pump.run()
    return {
        "totals": {root: xor for root, xor in totals.items() if xor},
        "left": sorted(left),
        "acked": sorted(pump.acked),
        "failed": pump.failed,
        "counts": counts_of(pump),
    }


class Roots:
    """Draws the same roots each time."""

    def draw(self, count):
        return list(range(1, count + 1))


def counts_of(pump):
    """Return the counts of all bolts, summed over tasks, that do not depend on steps."""
    totals = pump.metrics.totals()
    names = ("executed", "acked", "failed", "emitted", "transferred")
    return {
        (bolt, name): total_of(totals, bolt)[name] for bolt in pump.topology.bolts for name in names
    }


nodes = st.lists(
    st.builds(Node, mode=st.sampled_from(MODES), fan=st.integers(0, 3)), min_size=2, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(
    nodes=nodes,
    numbers=st.lists(st.integers(0, 30), max_size=20),
    grouping=st.sampled_from(["shuffle_grouping", "none_grouping", "local_or_shuffle_grouping"]),
)
def test_a_row_in_one_step_has_the_effects_of_bolts_with_steps_of_their_own(
    nodes, numbers, grouping
):
    chained, apart = (
        outcome(nodes, numbers, chaining=chaining, grouping=grouping) for chaining in (True, False)
    )
    assert chained == apart


def in_row(pump, component, head="b0"):
    """Return how many tuples of a bolt were executed in steps of the row's head."""
    pump.counting.flush()
    return total_of(pump.metrics.totals(), component)[chained_counter(head)]


def executed(pump, component):
    pump.counting.flush()
    return total_of(pump.metrics.totals(), component)["executed"]


def test_the_row_is_executed_in_the_steps_of_its_first_bolt():
    pump = Pump(row_of([Node("emit", 1), Node("emit", 2), Node("emit", 1)]))
    pump.feed(*[[n] for n in range(100)])
    pump.run()
    assert len(pump.acked) == 100
    assert [in_row(pump, bolt) for bolt in ("b0", "b1", "b2", "out")] == [0, 100, 200, 0]


def test_it_can_be_switched_off():
    pump = Pump(row_of([Node("emit", 1), Node("emit", 1)], chaining=False))
    pump.feed([1])
    pump.run()
    assert (executed(pump, "b1"), in_row(pump, "b1")) == (1, 0)


class Lasts(BasicBolt):
    """Takes time by moving the clock."""

    output_streams: ClassVar = {"default": "n long", "side": "n long"}
    transient = frozenset({"pump"})
    takes: ClassVar[dict[str, float]] = {}
    pumps: ClassVar[list[Pump]] = []

    def execute(self, tup, collector):
        pump = self.pumps[0]
        vars(pump)["now"] = pump.now + self.takes["s"]
        collector.emit([tup["n"]])


def slow_row(seconds, fan=1):
    Lasts.takes = {"s": 0.0}
    pump = Pump(row_of([Node("emit", fan), Lasts(), Node("emit", 1)]))
    Lasts.pumps = [pump]
    for _ in range(2):  # the first step is small
        pump.feed(*[[n] for n in range(1, 20)])
        pump.run()
    assert in_row(pump, "b1") == executed(pump, "b1") == 38 * fan
    Lasts.takes = {"s": seconds}
    return pump


def test_a_bolt_that_turns_out_slow_goes_back_to_its_own_tasks():
    pump = slow_row(0.03)
    pump.feed(*[[n] for n in range(20)])
    pump.send()
    pump.work(*pump.topology.task_ids("b0"))
    assert in_row(pump, "b1") == 38 + 1
    assert pump.waiting() == 20, "19 wait for the slow bolt, and one is through"
    pump.run()
    assert len(pump.acked) == 38 + 20
    assert in_row(pump, "b1") == 38 + 1


def test_a_bolt_that_was_slow_once_is_tried_again_and_goes_on_in_the_row():
    pump = slow_row(0.03)
    pump.feed([1])
    pump.run()
    Lasts.takes = {"s": 0.0}
    before = in_row(pump, "b1")
    pump.feed([2])
    pump.run()
    assert in_row(pump, "b1") == before
    pump.now += 1.1
    pump.feed(*[[n] for n in range(40)])
    pump.run()
    assert in_row(pump, "b1") == before + 40


def test_a_bolt_that_stays_slow_is_tried_ever_less_often():
    pump = slow_row(0.03)
    tried = 0
    for _ in range(300):
        before = in_row(pump, "b1")
        pump.feed([1])
        pump.run()
        tried += in_row(pump, "b1") > before
        pump.now += 1.0
    assert 5 <= tried <= 15


def test_quick_tuples_of_a_long_step_are_no_reason_to_leave_the_row():
    pump = slow_row(0.0019, fan=300)
    before = in_row(pump, "b1")
    pump.feed([1])
    pump.run()
    assert 200 < in_row(pump, "b1") - before < 220, "four tenths of a second"
    assert len(pump.acked) == 39
    pump.feed([2])
    pump.run()
    assert in_row(pump, "b1") > before + 400


@pytest.mark.parametrize("effects", range(8))
@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.03])
def test_a_death_anywhere_in_a_commit_is_repeated_and_counts_once(effects, seconds):
    """This holds even if time has cut the row: the repeat executes exactly as many inner tuples."""
    pump = slow_row(seconds)
    roots = pump.feed(*[[n] for n in range(1, 200, 2)])
    pump.send()
    before = set(pump.acked)
    with killed_after(effects):
        pump.work(*pump.topology.task_ids("b0"))
    Lasts.takes = {"s": 0.002}
    pump.take_over()
    pump.run()
    assert not pump.failed
    assert set(pump.acked) - before == set(roots)
    assert pump.ledger.pending() == 0


@pytest.mark.parametrize("effects", range(7))
def test_attempts_of_new_processes_end_a_row_that_others_began(effects):
    cluster = InboxCluster(row_of([Node("side", 2), Node("side", 1), Node("emit", 1)]))
    roots = cluster.emit([[n] for n in range(1, 9)])
    tasks = cluster.bolt_tasks
    with killed_after(effects):
        cluster.work({task: cluster.attempt(task) for task in tasks})
    for _ in range(3):
        cluster.work({task: cluster.attempt(task) for task in tasks})
    outcomes = cluster.outcomes()
    assert sorted(outcomes.acked) == sorted(roots)
    assert not outcomes.failed


def test_nothing_is_chained_for_a_minute_after_a_death():
    pump = Pump(row_of([Node("emit", 1), Node("emit", 1)]))
    pump.feed([1])
    pump.send()
    for task in pump.topology.task_ids("b0"):
        pump.attempts[task].fetch(1, 0.0, Claims(1))
    pump.take_over()
    pump.run()
    assert (executed(pump, "b1"), in_row(pump, "b1")) == (1, 0)
    pump.now += 59
    pump.feed([2], [3])
    pump.run()
    assert in_row(pump, "b1") == 0
    pump.now += 2
    pump.feed(*[[n] for n in range(9)])
    pump.run()
    assert in_row(pump, "b1") > 0


class FlushFails(Node):
    def flush(self, collector):
        raise ValueError("no flush")


def test_an_inner_step_whose_flush_raises_fails_its_tuples_and_sends_nothing():
    pump = Pump(row_of([Node("side", 1), FlushFails("side", 1), Node("emit", 1)]))
    roots = pump.feed([1], [2])
    pump.run()
    assert pump.failed == dict.fromkeys(roots, "b1: flush: ValueError: no flush")
    assert executed(pump, "b2") == executed(pump, "out") == 0


class Unprepared(Node):
    def prepare(self, config, context):
        raise OSError("no server")


def test_an_inner_bolt_whose_prepare_raises_fails_its_tuples():
    pump = Pump(row_of([Node("emit", 1), Unprepared("emit", 1)]))
    [root] = pump.feed([1])
    pump.run()
    assert pump.failed == {root: "b1: prepare: OSError: no server"}


class Seen(Node):
    """Records what the watchdog would see of the first task."""

    seen: ClassVar[list[Any]] = []
    attempts: ClassVar[list[Any]] = []

    def execute(self, tup, collector):
        step = self.attempts[0].executing()
        self.seen.append((step.record.component, step.task, step.roots(tup.row)))


def test_the_watchdog_sees_the_inner_bolt():
    builder = TopologyBuilder("row")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("b0", Node("emit", 1)).shuffle_grouping("spout")
    builder.set_bolt("b1", Seen("emit", 1)).shuffle_grouping("b0")
    pump = Pump(builder.build())
    Seen.attempts = [pump.attempts[2]]
    Seen.seen.clear()
    [root] = pump.feed([1])
    pump.run()
    assert Seen.seen == [("b1", 3, [root])]


def test_a_hang_in_an_inner_bolt_is_its_own():
    """The inner bolt's tuple fails at once, with the name of that bolt and its task."""

    class Hangs(Seen):
        def execute(self, tup, collector):
            lookout.hung(lookout.doing(), 7.0)

    builder = TopologyBuilder("row")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("b0", Node("emit", 1)).shuffle_grouping("spout")
    builder.set_bolt("b1", Hangs("emit", 1)).shuffle_grouping("b0")
    pump = Pump(builder.build())
    lookout = pump.around.suspicion.lookout(2, pump.attempts[2].executing)
    failures = []
    fail = pump.ledger.fail

    def noted(these):
        failures.extend(these)
        return fail(these)

    pump.ledger.fail = noted
    [root] = pump.feed([1])
    pump.run()
    assert [(one.root, one.component, one.task) for one in failures] == [(root, "b1", 3)]
    assert pump.failed == {root: "b1: still executing after 7 s; its process was ended"}


class Kills(Node):
    deaths: ClassVar[list[int]] = []

    def execute(self, tup, collector):
        if tup["n"] == 6:
            self.deaths.append(tup["n"])
            raise Killed
        collector.emit([tup["n"]])


def test_a_tuple_that_kills_the_process_of_a_row_is_found_at_its_bolt(monkeypatch):
    # A killed process records nothing more.
    monkeypatch.setattr(ExecutionNotes, "rest", lambda self: None)
    pump = Pump(row_of([Node("emit", 1), Kills("emit", 1), Node("emit", 1)]))
    Kills.deaths.clear()
    roots = pump.feed(*[[n] for n in range(1, 20)])
    pump.send()
    for _ in range(12):
        with suppress(Killed):
            pump.run()
            break
        dies = True
        while dies:
            with suppress(Killed):
                pump.take_over()
                dies = False
    assert pump.failed == {roots[5]: f"b1: {REASON}"}
    assert sorted(pump.acked) == sorted(set(roots) - {roots[5]})
    assert 3 <= len(Kills.deaths) <= 5


# -- bolts that must not be in a row


class Counts(BasicBolt):
    output_fields = "n long"

    def __init__(self):
        self.count = 0

    def execute(self, tup, collector):
        self.count += 1
        collector.emit([self.count])


class CountsInPrepare(BasicBolt):
    output_fields = "n long"

    def prepare(self, config, context):
        self.counts = Counter()

    def execute(self, tup, collector):
        self.counts[0] += 1
        collector.emit([self.counts[0]])


class CountsInSecret(BasicBolt):
    output_fields = "n long"
    count = 0

    def execute(self, tup, collector):
        vars(self)["count"] = self.count + 1
        collector.emit([self.count])


class Keeps(Bolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        collector.emit([tup["n"]], tup)
        collector.ack(tup)


@pytest.mark.parametrize(
    "bolt", [Counts(), CountsInPrepare(), CountsInSecret()], ids=lambda bolt: type(bolt).__name__
)
def test_a_bolt_with_attributes_that_change_keeps_its_own_steps(bolt):
    builder = TopologyBuilder("row")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("b0", Node("emit", 1)).shuffle_grouping("spout")
    builder.set_bolt("b1", bolt).shuffle_grouping("b0")
    builder.set_bolt("out", Keeps()).shuffle_grouping("b1")
    pump = Pump(builder.build())
    for _ in range(3):
        pump.feed([1], [2])
        pump.send()
        pump.work(2)
        pump.work(3)
    assert [n for (n,) in pump.rows("out")] == [1, 2, 3, 4, 5, 6]
    pump.take_over()
    pump.run()
    assert len(pump.acked) == 6
    assert in_row(pump, "b1") == 0


def test_the_seal_says_how_many_tuples_inner_bolts_executed():
    sealed = Covered(step=3, whole=("1-0",), part={"5-1": b"\x0f"}, inner=(7, 0, 12))
    assert decode(encode(sealed)) == sealed
    assert decode("3 0 12 900 d1ce|1-0 2-0|5-1=0f").inner == ()


def test_an_attempt_has_a_chain_only_with_a_row():
    pump = Pump(row_of([Node("emit", 1), Node("emit", 1)]))
    links = {
        pump.topology.component_of(task): attempt_at(pump.around, task, threading.Event())._chain
        for task in pump.tasks
    }
    assert {name for name, chain in links.items() if chain is not None} == {"b0"}
