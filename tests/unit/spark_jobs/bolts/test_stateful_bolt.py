"""StatefulBolt as users see it, over the memory store."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import pytest

from tests.support.pump import Pump, Source
from tests.support.states import begin, begun, state_of
from tiercel import (
    BasicBolt,
    Config,
    RedisUnavailableError,
    StatefulBolt,
    Topology,
    TopologyBuilder,
)
from tiercel.examples.word_count import SplitSentence, WordCount
from tiercel.spark_jobs.errors import BadStateError
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.state.store import Writes
from tiercel.testing import FeederSpout, LocalCluster


def stateful(
    bolt: BasicBolt,
    fields: str = "word string, n long",
    *,
    by: tuple[str, ...] = ("word",),
    parallelism: int = 3,
):
    builder = TopologyBuilder("stateful")
    builder.set_spout("spout", Source(fields))
    declared = builder.set_bolt("bolt", bolt, parallelism)
    declared.fields_grouping("spout", *by) if by else declared.shuffle_grouping("spout")
    return builder.build()


class Scripted(StatefulBolt):
    """Does what the tuple's first field says, with the state and a list of answers."""

    output_fields = "answer string"

    def execute(self, tup, collector):
        exec(tup[0], {"state": self.state, "answer": lambda value: collector.emit([repr(value)])})


def scripted(*scripts: str, parallelism: int = 1) -> tuple[LocalCluster, list[str]]:
    """Run each script in its own step; return the answers and the reasons of failures."""
    builder = TopologyBuilder("scripted")
    feeder = FeederSpout(fields="script string")
    builder.set_spout("spout", feeder)
    builder.set_bolt("bolt", Scripted(), parallelism).fields_grouping("spout", "script")
    with LocalCluster(builder.build()) as cluster:
        for number, script in enumerate(scripts):
            feeder.feed([script], msg_id=number)
            cluster.run_until_idle()
        return cluster, [answer for [answer] in cluster.read_tuples("bolt")]


def test_word_count_counts_from_step_to_step():
    builder = TopologyBuilder("word-count")
    feeder = FeederSpout(fields="sentence string")
    builder.set_spout("sentences", feeder)
    builder.set_bolt("split", SplitSentence(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", WordCount(), parallelism=3).fields_grouping("split", "word")
    sentences = [f"the falcon {number % 7} and the tiercel" for number in range(100)]
    with LocalCluster(builder.build()) as cluster:
        for number, sentence in enumerate(sentences):
            feeder.feed([sentence], msg_id=number)
            if number % 10 == 0:
                cluster.run_until_idle()
        cluster.run_until_idle()
        assert cluster.state("count") == Counter(
            word for sentence in sentences for word in sentence.split()
        )
        assert sorted(cluster.acked("sentences")) == list(range(100))


def test_everything_that_a_state_does():
    cluster, answers = scripted(
        (
            "answer(state.get('k')); answer(state.get('k', 7)); state.put('k', [1, {'a': "
            "b'x'}]); answer(state.get('k'))"
        ),
        (
            "found = state.get('k'); found.append(2); answer(state.get('k')); state.put('k', "
            "found); found.append(3)"
        ),
        (
            "answer(state.get('k')); state.delete('k'); state.delete('no'); answer(state.get('k', "
            "'gone'))"
        ),
        (
            "answer(state.get('k', 'gone')); answer(state.increment(('n', 1))); "
            "answer(state.increment(('n', 1), -5))"
        ),
        (
            "answer(state.increment(('n', 1), by=10)); state.delete(('n', 1)); "
            "answer(state.increment(('n', 1)))"
        ),
        (
            "state.put('none', None); answer(state.get('none', 'default')); state.put(1, "
            "True); state.put(b'1', 1.5)"
        ),
        "answer(sorted(map(repr, state.iterate())))",
    )
    value = "[1, {'a': b'x'}]"
    assert answers == [
        *("None", "7", value),
        value,
        *("[1, {'a': b'x'}, 2]", "'gone'"),
        *("'gone'", "1", "-4"),
        *("6", "1"),
        "None",
        repr(sorted(["(('n', 1), 1)", "('none', None)", "(1, True)", "(b'1', 1.5)"])),
    ]
    assert cluster.state("bolt") == {("n", 1): 1, "none": None, 1: True, b"1": 1.5}
    assert cluster.failed("spout") == []


def test_entries_may_change_while_they_are_iterated_over():
    cluster, answers = scripted(
        "[state.put(n, n) for n in range(6)]",
        (
            "for key, n in state.iterate(): answer(key); state.delete(key); state.delete(5 - n); "
            "state.put('new', -100)"
        ),
    )
    assert cluster.failed("spout") == []
    numbers = sorted(int(answer) for answer in answers if answer != "'new'")
    assert len(numbers) == 3, (
        "what was deleted before its turn came nevertheless, or something came twice"
    )
    assert {min(n, 5 - n) for n in numbers} == {0, 1, 2}
    assert cluster.state("bolt") == {"new": -100}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("state.put('k', {1, 2})", r"\{1, 2\} cannot be put into a state \(it holds a set\)"),
        ("state.get(None)", "None cannot be a key of a state"),
        (
            "state.put('k', 'text'); state.increment('k')",
            "'k' cannot be incremented: its value is 'text', not an int",
        ),
        ("state.put('k', True); state.increment('k')", "its value is True, not an int"),
        ("state.increment('k', 1.5)", "a state is incremented by an int, not by 1.5"),
        (
            "state.put('k', 2**63 - 1); state.increment('k')",
            "the number would need more than 64 bits",
        ),
        ("state.increment('k', -2**63)", "the number would need more than 64 bits"),
        ("state.put('k', 1); raise KeyError('on purpose')", "KeyError: 'on purpose'"),
    ],
)
def test_a_tuple_that_fails_says_why_and_leaves_nothing(script, reason):
    cluster, answers = scripted(
        "state.put('before', 1)", f"state.put('x', 1); state.delete('before'); {script}"
    )
    [found] = cluster.fail_reasons("spout")
    assert re.search(reason, found)
    assert cluster.state("bolt") == {"before": 1}
    assert answers == []


class Balances(StatefulBolt):
    """Adds n to a word; raises after the write if the sum is negative."""

    def execute(self, tup, collector):
        if self.state.increment(tup["word"], tup["n"]) < 0:
            self.state.put(("overdrawn", tup["word"]), True)
            raise ValueError("overdrawn")


def entries(pump: Pump, component: str = "bolt") -> dict[Any, Any]:
    return {decode_key(field): decode_value(raw) for field, raw in pump.state.entries(component)}


def test_the_writes_of_one_tuple_are_forgotten_and_those_around_it_stay():
    pump = Pump(stateful(Balances()))
    roots = pump.feed(["a", 5], ["b", 1], ["a", -9], ["a", 2], ["b", -2], ["c", -1])
    pump.run()
    assert entries(pump) == {"a": 7, "b": 1}
    assert sorted(pump.failed) == sorted([roots[2], roots[4], roots[5]])


class Flushing(Balances):
    """Counts in flush, and raises there after the word "raise"."""

    def prepare(self, config, context):
        self.words: Counter[str] = Counter()

    def execute(self, tup, collector):
        self.words[tup["word"]] += 1
        self.state.put("last", tup["word"])

    def flush(self, collector):
        for word, count in self.words.items():
            self.state.increment(word, count)
        if self.words["raise"]:
            raise OSError("no")
        self.words.clear()


def test_what_flush_writes_goes_along_and_if_it_raises_nothing_does():
    pump = Pump(stateful(Flushing(), parallelism=1))
    pump.feed(["a", 1], ["a", 1], ["b", 1])
    pump.run()
    roots = pump.feed(["a", 1], ["raise", 1])
    pump.run()
    assert entries(pump) == {"a": 2, "b": 1, "last": "b"}
    assert sorted(pump.failed) == sorted(roots)
    pump.feed(["c", 1])
    pump.run()
    assert entries(pump) == {"a": 2, "b": 1, "c": 1, "last": "c"}


class Early(Balances):
    def prepare(self, config, context):
        self.state.put("too", "early")


def test_a_state_used_outside_of_a_step_is_a_clear_error():
    pump = Pump(stateful(Early()))
    [root] = pump.feed(["a", 1])
    pump.run()
    assert "a state can be used in execute and flush only" in pump.failed[root]
    for use in (
        lambda state: state.get("a"),
        lambda state: state.put("a", 1),
        lambda state: state.delete("a"),
        lambda state: state.increment("a"),
        lambda state: list(state.iterate()),
    ):
        with pytest.raises(BadStateError, match="execute and flush only"):
            use(StatefulBolt().state)
    state = begun(MemoryStateStore(), "bolt", 0, 0)
    state.writing("d")
    with pytest.raises(BadStateError, match="execute and flush only"):
        state.put("a", 1)


def test_the_state_does_not_travel_with_its_bolt():
    pump = Pump(stateful(Sums()))
    pump.feed(["a", 1], ["b", 2], ["c", 3])
    pump.run()
    copies = [attempt._setup.copy.bolt for attempt in pump.attempts.values()]
    assert [vars(copy) for copy in copies if copy is not None] == [{}, {}]
    assert pump.snapshots() == [], "a bolt without attributes of its own was pickled"


# -- reading in bulk -------------------------------------------------------------------------------


class Watched(MemoryStateStore):
    """Records the keys of each read."""

    def __init__(self):
        super().__init__()
        self.reads: list[list[Any]] = []

    def _begin(self, component, task, step, fields):
        if fields:
            self.reads.append(sorted(map(decode_key, fields), key=repr))
        turn = super()._begin(component, task, step, fields)
        read = turn.read

        def watched(fields):
            self.reads.append(sorted(map(decode_key, fields), key=repr))
            return read(fields)

        turn.read = watched
        return turn


class Sums(StatefulBolt):
    def execute(self, tup, collector):
        self.state.increment(tup["word"], tup["n"])


class Pairs(StatefulBolt):
    def execute(self, tup, collector):
        self.state.increment((tup["word"], tup["n"]))


class Unreadable:
    """As a proxy of an object that is gone."""

    @property
    def __class__(self):
        raise ReferenceError("gone")


class Asking(Sums):
    def state_keys(self, tup):
        if tup["word"] == "bad":
            raise RuntimeError("no keys")
        yield tup["word"]
        yield None
        yield Unreadable()

    def execute(self, tup, collector):
        super().execute(tup, collector)
        self.state.get(("other", tup["word"]))


def reads_of(topology: Topology, *rows) -> list[list[Any]]:
    pump = Pump(topology, state=Watched())
    pump.feed(*rows)
    pump.run()
    assert not pump.failed
    return pump.state.reads


def test_the_keys_of_a_fields_grouping_are_read_in_one_go():
    assert reads_of(stateful(Sums(), parallelism=1), ["a", 1], ["b", 2], ["a", 3]) == [["a", "b"]]
    pairs = stateful(Pairs(), by=("word", "n"), parallelism=1)
    assert reads_of(pairs, ["a", 1], ["b", 2], ["a", 1]) == [[("a", 1), ("b", 2)]]


def test_other_keys_are_read_when_they_are_used_and_once():
    assert reads_of(stateful(Sums(), by=(), parallelism=1), ["a", 1], ["b", 2], ["a", 3]) == [
        ["a"],
        ["b"],
    ]


def test_a_bolt_may_say_which_keys_to_read_and_a_mistake_there_costs_only_time():
    rows = [["a", 1], ["bad", 1], ["b", 1], ["a", 2]]
    reads = reads_of(stateful(Asking(), parallelism=1), *rows)
    assert reads[0] == ["a", "b"]
    assert sorted(map(repr, reads[1:])) == sorted(
        map(repr, [[("other", "a")], ["bad"], [("other", "bad")], [("other", "b")]])
    )


class OnTick(Asking):
    """Clears its counts at a tick."""

    def execute(self, tup, collector):
        if tup.is_tick:
            for key, _ in self.state.iterate():
                self.state.delete(key)
        else:
            self.state.increment(tup["word"])


def test_a_tick_may_go_over_the_state():
    builder = TopologyBuilder("ticking", Config(tick_tuple_freq_secs=10))
    builder.set_spout("spout", Source("word string"))
    builder.set_bolt("bolt", OnTick(), parallelism=2).fields_grouping("spout", "word")
    pump = Pump(builder.build())
    pump.feed(*(list(word) for word in "abcdefgh"))
    pump.run()
    assert entries(pump) == dict.fromkeys("abcdefgh", 1)
    for pump.now in (10.0, 20.0):
        pump.run()
        assert entries(pump) == {}
    assert pump.metrics.errors() == []


def test_a_key_that_a_state_cannot_hold_fails_its_tuple_and_no_other():
    pump = Pump(stateful(Sums(), parallelism=1))
    none, _ = pump.feed([None, 1], ["a", 2])
    pump.run()
    assert "None cannot be a key of a state" in pump.failed[none]
    assert entries(pump) == {"a": 2}


class Away:
    """A turn whose server does not respond."""

    committed_digest = None

    def __init__(self):
        self.calls = 0
        self.found = {}

    def read(self, fields):
        self.calls += 1
        raise RedisUnavailableError("away")

    def scan(self):
        self.calls += 1
        yield from ()
        raise RedisUnavailableError("away")

    def writing(self, writes: Writes, digest: str):
        raise AssertionError("committed what was made of a failed read")


@pytest.mark.parametrize("use", [lambda state: state.get("a"), lambda state: list(state.iterate())])
def test_a_server_that_does_not_answer_is_asked_once_and_then_the_step_is_repeated(use):
    turn = Away()
    state = state_of(turn)
    for _ in range(5):
        with pytest.raises(RedisUnavailableError):
            use(state)
    with pytest.raises(RedisUnavailableError):
        state.writing("d")
    assert turn.calls == 1


# -- owners of keys --------------------------------------------------------------------------------


class Owners(StatefulBolt):
    """Records under each key which task received it."""

    def prepare(self, config, context):
        self.index = context.task_index

    def execute(self, tup, collector):
        self.state.put(tuple(tup.values) if len(tup.values) > 1 else tup[0], self.index)


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ("word string", [[f"wörd {n}"] for n in range(50)]),
        ("n long", [[n**9] for n in range(-25, 25)]),
        ("n int", [[n] for n in range(-25, 25)]),
        ("body binary", [[bytes([n, 255 - n])] for n in range(50)]),
        ("word string, n long, body binary", [[f"w{n}", n, bytes([n])] for n in range(50)]),
    ],
)
def test_iterating_gives_each_key_once_at_the_task_that_a_fields_grouping_sends_it_to(fields, rows):
    store = MemoryStateStore()
    by = tuple(field.split()[0] for field in fields.split(", "))
    for run_number, parallelism in enumerate([1, 3, 2, 5], start=1):
        store = MemoryStateStore(run_number, beneath=store)
        pump = Pump(stateful(Owners(), fields, by=by, parallelism=parallelism), state=store)
        # The second run lacks half of the rows: state written with the other parallelism counts
        # too.
        pump.feed(*rows[: 50 if run_number == 1 else 25])
        pump.run()
        states = [
            state_of(begin(store, "bolt", index, 1000), index, parallelism)
            for index in range(parallelism)
        ]
        shares = [dict(state.iterate()) for state in states]
        assert all(shares)
        assert sorted(map(repr, itertools.chain(*shares))) == sorted(map(repr, entries(pump)))
        fed = {tuple(row) if len(row) > 1 else row[0] for row in rows[:25]}
        for index, share in enumerate(shares):
            assert {task for key, task in share.items() if key in fed} == {index}


def test_a_task_iterates_over_its_own_writes_of_keys_that_it_owns():
    store = MemoryStateStore()
    states = [state_of(begin(store, "bolt", index, 0), index, 3) for index in range(3)]
    for state in states:
        for n in range(30):
            state.put(n, "mine")
    shares = [{key for key, _ in state.iterate()} for state in states]
    assert sorted(key for share in shares for key in share) == list(range(30))
    assert all(shares)
