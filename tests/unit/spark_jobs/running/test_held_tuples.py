"""Bolts that hold tuples across steps, such as joins and counts, in any process and over any number
of retries.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pump import Pump, Source, killed_after
from tiercel import BasicBolt, Bolt, Config, TopologyBuilder, TupleError
from tiercel.spark_jobs.running import copy as copy_module
from tiercel.spark_jobs.running.copy import (
    BadSignatureError,
    body_of,
    held_roots,
    sign,
    verified,
)


class Join(Bolt):
    """Holds each side until the other arrives; emits one output, anchored to both."""

    output_fields = "key long, left string, right string"

    def __init__(self) -> None:
        self.waiting: dict[int, Any] = {}

    def execute(self, tup, collector):
        other = self.waiting.pop(tup["key"], None)
        if other is None or other.source_component == tup.source_component:
            self.waiting[tup["key"]] = tup
            return
        left, right = sorted([other, tup], key=lambda side: side.source_component)
        collector.emit([tup["key"], left["value"], right["value"]], [left, right])
        collector.ack(left)
        collector.ack(right)


class Joined(BasicBolt):
    """Records the values it gets, once per attempt."""

    seen: list[tuple[Any, ...]]

    def execute(self, tup, collector):
        self.seen.append(tuple(tup.values))


def joined(parallelism: int = 2) -> tuple[Pump, list[tuple[Any, ...]]]:
    seen: list[tuple[Any, ...]] = []
    sink = type("Sink", (Joined,), {"seen": seen})()
    builder = TopologyBuilder("join", Config())
    builder.set_spout("left", Source("key long, value string"))
    builder.set_spout("right", Source("key long, value string"))
    join = builder.set_bolt("join", Join(), parallelism)
    join.fields_grouping("left", "key").fields_grouping("right", "key")
    builder.set_bolt("sink", sink).shuffle_grouping("join")
    return Pump(builder.build()), seen


@pytest.mark.parametrize("moving", [False, True], ids=["one process", "another process each time"])
def test_a_join_over_two_spouts_and_many_steps(moving: bool) -> None:
    pump, seen = joined()
    keys = list(range(50))
    lefts = [pump.feed([key, f"l{key}"], spout="left")[0] for key in keys]
    pump.run()
    assert pump.acked == []
    assert pump.ledger.pending() == 50
    rights = []
    for key in random.Random(3).sample(keys, 50):
        if moving:
            pump.take_over()
        rights += pump.feed([key, f"r{key}"], spout="right")
        pump.run()
        assert len(pump.acked) == 2 * len(rights), "a pair is acked as soon as it is complete"
    assert sorted(seen) == [(key, f"l{key}", f"r{key}") for key in keys]
    assert sorted(pump.acked) == sorted(lefts + rights)
    assert pump.ledger.pending() == 0


def test_a_held_tuple_that_fails_takes_its_message_and_no_other() -> None:
    class Impatient(Bolt):
        def __init__(self) -> None:
            self.held: list[Any] = []

        def execute(self, tup, collector):
            for old in self.held:
                collector.fail(old, "too late")
            self.held = [tup]

    builder = TopologyBuilder("impatient")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Impatient()).shuffle_grouping("spout")
    pump = Pump(builder.build())
    first = pump.feed(["a"])
    pump.run()
    pump.take_over()
    second = pump.feed(["b"])
    pump.run()
    assert pump.failed == {first[0]: "bolt: too late"}
    assert pump.ledger.pending() == 1
    pump.take_over()
    pump.feed(["c"])
    pump.run()
    assert pump.failed[second[0]] == "bolt: too late"


class Gather(Bolt):
    """Emits one tuple for every three, anchored to them; counts what it has seen."""

    output_fields = "words string, seen long"

    def prepare(self, config, context):
        self.lock = threading.Lock()  # cannot be pickled, and need not be
        self.held: list[Any] = []
        self.seen = 0

    def execute(self, tup, collector):
        with self.lock:
            self.held.append(tup)
            self.seen += 1
            if len(self.held) == 3:
                collector.emit([" ".join(held[0] for held in self.held), self.seen], self.held)
                for held in self.held:
                    collector.ack(held)
                self.held = []


def pumped(bolt: Bolt, parallelism: int = 1) -> Pump:
    builder = TopologyBuilder("one-bolt")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", bolt, parallelism).shuffle_grouping("spout")
    if bolt.output_fields:
        builder.set_bolt("sink", BasicSink()).shuffle_grouping("bolt")
    return Pump(builder.build())


class BasicSink(BasicBolt):
    def execute(self, tup, collector):
        pass


def worked(pump: Pump) -> list[tuple[Any, ...]]:
    """Let the bolt work, and the sink execute its output; return the output."""
    pump.work_at("bolt")
    rows = pump.rows("sink")
    pump.run()
    return rows


STEPS = st.tuples(st.integers(1, 5), st.booleans(), st.sampled_from(["lives", 0, 1, 2, 3, 4]))


@given(st.lists(STEPS, min_size=1, max_size=12))
def test_retries_and_moves_change_nothing(steps: list[tuple[int, bool, str]]) -> None:
    pump = pumped(Gather())
    words: list[str] = []
    roots: list[int] = []
    out: list[tuple[Any, ...]] = []
    for count, moves, dies_after in steps:
        fed = [f"w{len(words) + number}" for number in range(count)]
        words += fed
        roots += pump.feed(*([word] for word in fed))
        if moves:
            pump.take_over()
        if dies_after != "lives":
            with killed_after(int(dies_after)):
                pump.work_at("bolt")
            pump.take_over()
        out += worked(pump)
    done = len(words) // 3 * 3
    assert out == [(" ".join(words[at : at + 3]), at + 3) for at in range(0, done, 3)]
    assert pump.failed == {}
    assert sorted(pump.acked) == sorted(roots[:done])
    assert pump.ledger.pending() == len(words) - done


@pytest.mark.parametrize("effects", range(4))
def test_an_attempt_that_ends_in_the_middle_leaves_no_trace(effects: int) -> None:
    pump = pumped(Gather())
    pump.feed(["a"], ["b"])
    pump.run()
    pump.feed(["c"])
    with killed_after(effects):
        pump.work_at("bolt")
    pump.take_over()
    assert worked(pump) == [("a b c", 3)]
    assert len(pump.acked) == 3


class Aborting(Gather):
    """Fails in flush unless the last word is a lucky one."""

    lucky = frozenset({"a", "b", "d"})

    def execute(self, tup, collector):
        super().execute(tup, collector)
        self.last = tup[0]

    def flush(self, collector):
        if self.last not in self.lucky:
            raise ConnectionError("gone")


def test_a_flush_that_fails_undoes_the_step_and_only_that() -> None:
    pump = pumped(Aborting())
    pump.feed(["a"])
    pump.run()
    pump.feed(["b"])
    pump.run()
    lost = pump.feed(["c"])
    assert worked(pump) == [], "what was emitted went with the flush"
    assert pump.failed == {lost[0]: "bolt: flush: ConnectionError: gone"}
    pump.feed(["d"])
    assert worked(pump) == [("a b d", 3)], "it holds what it held before, and has not seen c"
    assert pump.ledger.pending() == 0
    assert len(pump.acked) == 3


class Careless(Bolt):
    def execute(self, tup, collector):
        if tup[0] == "local":
            self.lock = threading.Lock()
            self.kept = tup
        elif tup[0] == "deep":
            self.deep = [threading.Lock(), tup]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "forgotten",
            [
                (
                    "1 tuples were neither acked nor failed nor kept in an attribute or a "
                    "thread: their messages time out"
                )
            ],
        ),
        (
            "local",
            [
                (
                    "attribute 'lock' cannot be pickled (TypeError: cannot pickle '_thread.lock' "
                    "object): make it in prepare"
                )
            ],
        ),
        # Here the tuple can still be acked; the attribute is lost with the process.
        ("deep", ["attribute 'deep' cannot be pickled"]),
    ],
)
def test_what_cannot_be_kept_is_said(word: str, said: list[str]) -> None:
    pump = pumped(Careless())
    pump.feed([word])
    pump.run()
    found = [error.message for error in pump.metrics.errors(10)]
    assert len(found) == len(said)
    assert all(start in message for start, message in zip(said, sorted(found), strict=True))
    assert pump.ledger.pending() == 1


class Storing(Bolt):
    def execute(self, tup, collector):
        self.collector = collector
        collector.ack(tup)


def test_a_collector_that_is_stored_stays_behind() -> None:
    pump = pumped(Storing())
    pump.feed(["a"])
    pump.run()
    assert [
        "a collector cannot be pickled" in error.message for error in pump.metrics.errors(10)
    ] == [True]
    assert pump.ledger.pending() == 0


class Modelled(Bolt):
    transient = frozenset({"model"})

    def prepare(self, config, context):
        self.model: list[str] = []
        self.count = 0

    def execute(self, tup, collector):
        self.model.append(tup[0])
        self.count += 1
        collector.emit([f"{len(self.model)} {self.count}", 0], tup)
        collector.ack(tup)

    output_fields = "word string, n long"


def test_what_is_transient_stays_in_its_process() -> None:
    pump = pumped(Modelled())
    out = []
    for _ in range(3):
        pump.feed(["a"])
        out += worked(pump)
        pump.take_over()
    assert [word for word, _ in out] == ["1 1", "1 2", "1 3"]


class Unchanging(Bolt):
    def prepare(self, config, context):
        self.table = {number: str(number) for number in range(100)}

    def execute(self, tup, collector):
        collector.ack(tup)


def test_what_does_not_change_is_not_saved() -> None:
    pump = pumped(Unchanging())
    for _ in range(3):
        pump.feed(["a"])
        pump.run()
    assert pump.snapshots() == []


@dataclasses.dataclass(slots=True, frozen=True)
class Slotted(Bolt):
    """Has its attributes in ``__slots__``, and holds a tuple."""

    output_fields = "word string, n long"
    seen: list[Any] = dataclasses.field(default_factory=list)

    def execute(self, tup, collector):
        self.seen.append(tup)
        if len(self.seen) < 3:
            return
        collector.emit([" ".join(one[0] for one in self.seen), len(self.seen)], self.seen)
        for one in self.seen:
            collector.ack(one)
        self.seen.clear()


def test_attributes_in_slots_outlive_the_process_too() -> None:
    pump = pumped(Slotted())
    for word in ("a", "b", "c"):
        pump.feed([word])
        out = worked(pump)
        pump.take_over()
    assert out == [("a b c", 3)]
    assert len(pump.acked) == 3


class Remembering(Bolt):
    """Has an attribute between ``on`` and ``off``, and none before and after."""

    output_fields = "word string, n long"

    def execute(self, tup, collector):
        collector.emit(["has" if hasattr(self, "note") else "has not", 0], tup)
        if tup[0] == "on":
            self.note = "on"
        elif tup[0] == "off":
            del self.note
        collector.ack(tup)


def test_an_attribute_that_is_taken_away_is_gone_in_the_next_process() -> None:
    pump = pumped(Remembering())
    out = []
    for word in ("look", "on", "look", "off", "look", "on", "look"):
        pump.feed([word])
        out += worked(pump)
        pump.take_over()
    assert [word for word, _ in out] == [
        "has not",
        "has not",
        "has",
        "has",
        "has not",
        "has not",
        "has",
    ]


class Forgetting(Bolt):
    def execute(self, tup, collector):
        pass


def test_a_bolt_without_attributes_that_forgets_its_tuples_is_told() -> None:
    pump = pumped(Forgetting())
    pump.feed(["a"], ["b"])
    pump.run()
    [error] = pump.metrics.errors(10)
    assert error.message.startswith("2 tuples were neither acked nor failed nor kept")


def test_tuples_that_were_acked_stay_readable_in_attributes_and_cannot_be_acked_again() -> None:
    class Last(Bolt):
        last: Any = None
        output_fields = "word string, n long"

        def execute(self, tup, collector):
            if self.last is not None:
                collector.emit([self.last["word"], 0], tup)
                with pytest.raises(TupleError):
                    collector.ack(self.last)
            self.last = tup
            collector.ack(tup)

    pump = pumped(Last())
    for word in ("a", "b"):
        pump.feed([word])
        out = worked(pump)
        pump.take_over()
    assert out == [("a", 0)]


def test_a_driver_learns_the_roots_that_are_held() -> None:
    pump = pumped(Gather())
    roots = pump.feed(["a"], ["b"], ["c"], ["d"], ["e"])
    pump.run()
    held = [root for _, snapshot in pump.snapshots() for root in held_roots(body_of(snapshot))]
    assert sorted(held) == sorted(roots[3:])


def test_in_another_run_the_bolt_begins_anew() -> None:
    pump = pumped(Gather())
    pump.feed(["a"])
    pump.run()
    pump.begin_run("later")
    pump.feed(["b"], ["c"], ["d"])
    assert worked(pump) == [("b c d", 3)]


def test_what_a_stranger_wrote_is_passed_over_and_not_unpickled(caplog) -> None:
    pump = pumped(Gather())
    pump.feed(["a"])
    pump.run()
    box = pump.inboxes._boxes[2]
    box.snapshot = sign(b"another key", "task 2", body_of(box.snapshot))
    pump.take_over()
    pump.feed(["b"])
    pump.run()
    pump.feed(["c"], ["d"])
    assert worked(pump) == [("b c d", 3)]
    assert not pump.failed
    lines = [record.message for record in caplog.records]
    assert len(lines) == 1
    assert "task 2" in lines[0]
    assert "wrong signature" in lines[0]


def test_a_seal_is_for_one_purpose() -> None:
    signed = sign(b"key", "task 1", b"content")
    assert verified(b"key", "task 1", signed) == b"content"
    for key, purpose, content in [
        (b"yek", "task 1", signed),
        (b"key", "task 2", signed),
        (b"key", "task 1", signed + b"x"),
    ]:
        with pytest.raises(BadSignatureError):
            verified(key, purpose, content)


class Mixed(Bolt):
    """Holds tuples of two streams, tracked and untracked, and anchors one output to one of them
    several times.
    """

    output_fields = "word string, n long"

    def __init__(self) -> None:
        self.held: list[Any] = []

    def execute(self, tup, collector):
        self.held.append(tup)
        if tup[0] == "now":
            for held in self.held:
                collector.emit([held[0], held.emitted], [held, held])
                collector.ack(held)
            self.held = []
        else:
            collector.emit([tup[0], -1], tup)


def test_emissions_over_several_steps_are_anchored_to_edges_of_their_own() -> None:
    pump = pumped(Mixed())
    roots = pump.feed(["a"], ["b"])
    pump.feed(["loose"], tracked=False)
    pump.run()
    pump.take_over()
    assert pump.ledger.pending() == 2
    roots += pump.feed(["now"])
    pump.run()
    assert sorted(pump.acked) == sorted(roots)
    assert pump.ledger.pending() == 0


class Hold(Bolt):
    """Holds the first tuple until the second arrives."""

    output_fields = "first map<string,string>, second map<string,string>"

    def __init__(self) -> None:
        self.held: Any = None

    def execute(self, tup, collector):
        if self.held is None:
            self.held = tup
            return
        collector.emit([self.held["headers"], tup["headers"]], [self.held, tup])
        collector.ack(self.held)
        collector.ack(tup)


def test_a_held_tuple_has_its_map_in_another_process_too() -> None:
    seen: list[tuple[Any, ...]] = []
    builder = TopologyBuilder("hold", Config())
    builder.set_spout("in", Source("headers map<string,string>"))
    builder.set_bolt("hold", Hold()).shuffle_grouping("in")
    sink = type("Sink", (Joined,), {"seen": seen})()
    builder.set_bolt("sink", sink).shuffle_grouping("hold")
    pump = Pump(builder.build())
    pump.feed([{"a": "ä", "none": None}])
    pump.run()
    pump.take_over()
    pump.feed([{}])
    pump.run()
    assert seen == [({"a": "ä", "none": None}, {})]
    assert len(pump.acked) == 2


class Summing(Bolt):
    """Holds all tuples and emits their sum; at message ``b`` spoils a held tuple."""

    output_fields = "text string"

    def prepare(self, config, context):
        self.held: list[Any] = []

    def execute(self, tup, collector):
        self.held.append(tup)
        collector.emit(["+".join(one["word"] for one in self.held)], anchors=self.held)
        if tup["word"] == "b":
            # The column holds only strings, so the snapshot cannot be taken.
            tup["tags"].append({"seen": True})
        elif len(self.held) > 1:
            collector.ack(self.held.pop(0))


def refusing(bolt: Bolt | BasicBolt, fields: str, refuses: str) -> tuple[Pump, list[str]]:
    """Build a bolt, task 2, before one that refuses texts with ``refuses`` in them."""
    seen: list[str] = []

    def execute(_self: Any, tup: Any, _collector: Any) -> None:
        seen.append(tup["text"])
        if refuses in tup["text"]:
            raise ValueError("refused")

    builder = TopologyBuilder("refusing")
    builder.set_spout("spout", Source(fields))
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    store = type("Store", (BasicBolt,), {"execute": execute})()
    builder.set_bolt("store", store).shuffle_grouping("bolt")
    return Pump(builder.build()), seen


def test_a_step_that_cannot_keep_its_attributes_fails_its_input_and_nothing_of_it_leaves() -> None:
    pump, seen = refusing(Summing(), "word string, tags array<string>", "+")
    roots = {}
    for word in "abc":
        [roots[word]] = pump.feed([word, ["x"]])
        pump.run()
    assert seen == ["a", "a+c"]
    assert pump.acked == []
    assert pump.failed[roots["b"]].startswith("bolt: cannot keep its attributes")
    # ``a`` was held as before the step; the sum with ``b`` has not left.
    assert pump.failed[roots["a"]] == pump.failed[roots["c"]] == "store: ValueError: refused"


class Sliding(Bolt):
    """Holds tuples and emits their sum when the plan says so, as a clock might."""

    output_fields = "text string"
    plan: list[bool]

    def prepare(self, config, context):
        self.held: list[Any] = []

    def execute(self, tup, collector):
        self.held.append(tup)
        if self.plan.pop(0):
            collector.emit(["sum " + "+".join(one["word"] for one in self.held)], anchors=self.held)
            while len(self.held) > 1:
                collector.ack(self.held.pop(0))


@pytest.mark.parametrize("effects", range(6))
def test_a_repeat_that_does_other_work_fails_what_is_held_too(effects: int) -> None:
    plan = [False, True, False, True]
    pump, seen = refusing(type("Slides", (Sliding,), {"plan": plan})(), "word string", "sum")
    [a] = pump.feed(["a"])
    pump.run()
    [b] = pump.feed(["b"])
    pump.send()
    with killed_after(effects):
        pump.work(2)
    pump.take_over(2)
    pump.run()
    [c] = pump.feed(["c"])
    pump.run()
    assert {a, b} <= pump.failed.keys()
    assert c not in pump.acked
    assert set(seen) <= {"sum a+b", "sum a+b+c", "sum a+c", "sum b+c", "sum c"}


class Alarm(BasicBolt):
    output_fields = "text string"
    plan: list[bool]

    def execute(self, tup, collector):
        if self.plan.pop(0):
            collector.emit(["alarm " + tup["word"]])


@pytest.mark.parametrize("effects", range(1, 5))
def test_a_repeat_that_emits_nothing_more_fails_its_message(effects: int) -> None:
    bolt = type("Alarms", (Alarm,), {"plan": [True, False]})()
    pump, seen = refusing(bolt, "word string", "alarm")
    [root] = pump.feed(["x"])
    pump.send()
    with killed_after(effects):
        pump.work(2)
    pump.take_over(2)
    pump.run()
    assert pump.acked == []
    assert root in pump.failed
    assert seen in ([], ["alarm x"])


class Hoarding(Bolt):
    """Keeps the bytes of each word, and each tuple whose word begins with ``hold``."""

    def prepare(self, config, context):
        self.cache: list[str] = []
        self.held: list[Any] = []

    def execute(self, tup, collector):
        self.cache.append(tup["word"])
        if tup["word"].startswith("hold"):
            self.held.append(tup)
        else:
            collector.ack(tup)


@pytest.fixture
def hoarding(monkeypatch: pytest.MonkeyPatch) -> Pump:
    """Attributes of more than 1 kB are large, and of more than 4 kB too large."""
    monkeypatch.setattr(copy_module, "_LARGE", 1_000)
    monkeypatch.setattr(copy_module, "_LIMIT", 4_000)
    builder = TopologyBuilder("hoarding")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Hoarding()).shuffle_grouping("spout")
    return Pump(builder.build())


def cached(pump: Pump) -> int:
    return len(pump.attempts[2].kind.copy.ready().cache)  # type: ignore[union-attr]


def test_attributes_that_leak_up_to_the_limit_begin_anew(hoarding, caplog) -> None:
    """Otherwise all messages from then on would fail, until they are dead letters."""
    [held] = hoarding.feed(["hold"])
    hoarding.run()
    roots = []
    for number in range(10):
        roots += hoarding.feed([f"{number}" * 600])
        hoarding.run()
    failed = [root in hoarding.failed for root in roots]
    assert failed == [False] * 5 + [True] * 2 + [False] * 3, "the first two that were too many"
    assert all("its attributes have 0 MiB" in hoarding.failed[root] for root in roots[5:7])
    assert hoarding.failed[held].startswith("bolt: its task began anew while the bolt")
    assert "bolt[2] begins with new attributes, as in a new run: its attr" in caplog.text
    hoarding.take_over()
    assert cached(hoarding) == 3, "the attributes that were given up are not back"
    assert hoarding.ledger.pending() == 0


def test_one_message_that_brings_too_much_costs_no_attributes(hoarding) -> None:
    [small] = hoarding.feed(["a"])
    hoarding.run()
    for _ in range(4):
        [large] = hoarding.feed(["b" * 5_000])
        hoarding.run()
        assert "cannot keep its attributes" in hoarding.failed[large]
    assert hoarding.acked == [small]
    assert cached(hoarding) == 1


def test_processes_that_die_at_one_step_with_large_attributes_begin_anew(hoarding, caplog) -> None:
    """As of no memory, which no call of the bolt is to blame for."""
    [held] = hoarding.feed(["hold" + "x" * 1_500])
    hoarding.run()
    hoarding.take_over()
    assert cached(hoarding) == 1
    [root] = hoarding.feed(["a"])
    for _ in range(6):
        with killed_after(0):
            hoarding.run()
        assert "begins with new attributes" not in caplog.text
        hoarding.take_over()
    assert "5 processes in a row died before they finished a step" in caplog.text
    hoarding.run()
    assert (hoarding.acked, list(hoarding.failed)) == ([root], [held])
    assert cached(hoarding) == 1


def test_processes_that_die_without_work_cost_no_attributes(hoarding) -> None:
    hoarding.feed(["a" * 1_500])
    hoarding.run()
    for _ in range(9):
        hoarding.take_over()
    assert cached(hoarding) == 1
