"""Keys of a whole tree: the same at each delivery, and all different."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.pump import Pump, Source
from tiercel import ArrowBolt, BasicBolt, Bolt, TopologyBuilder
from tiercel.workers.spout import collector

# Component, task, values and key of each tuple seen.
Seen = list[tuple[str, int, Any, bytes | None]]


class Look:
    """Records the key of each tuple."""

    seen: Seen = []  # noqa: RUF012 - shared by all copies

    def prepare(self, config, context):
        self.where = context.component, context.task_index

    def note(self, values, key) -> None:
        self.seen.append((*self.where, tuple(values), key))


class Split(Look, BasicBolt):
    output_streams = {"default": "word string, n long", "other": "word string"}  # noqa: RUF012

    def execute(self, tup, collector):
        self.note(tup.values, tup.key)
        for n, word in enumerate(tup["line"].split()):
            collector.emit([word, n])
            collector.emit([word], stream="other")


class Pair(Look, Bolt):
    """Emits each word twice: anchored to its tuple alone, and with the previous word to both."""

    output_fields = "words string"

    def execute(self, tup, collector):
        self.note(tup.values, tup.key)
        collector.emit([tup["word"]], anchors=tup)
        collector.emit([tup["word"] * 2], anchors=[tup, tup])
        collector.ack(tup)


class Whole(Look, ArrowBolt):
    output_fields = "word string"

    def execute(self, batch, collector):
        for values, key in zip(batch.to_pylist(), collector.keys.to_pylist(), strict=True):
            self.note(values.values(), key)
        rows = list(range(batch.num_rows))
        collector.emit({"word": batch.column("word")}, anchors=rows)


class End(Look, BasicBolt):
    def execute(self, tup, collector):
        self.note(tup.values, tup.key)


class Three:
    """Sends a tuple to some of the tasks, in reverse order."""

    def prepare(self, context, stream, target_tasks):
        self.tasks = target_tasks

    def choose_tasks(self, task_id, values):
        return self.tasks[: 1 + len(values[0]) % 3][::-1]


def topology(parallelism: int):
    builder = TopologyBuilder("keys")
    builder.set_spout("lines", Source("line string"))
    builder.set_bolt("split", Split(), parallelism).shuffle_grouping("lines")
    builder.set_bolt("pair", Pair(), parallelism).shuffle_grouping("split")
    builder.set_bolt("whole", Whole(), parallelism).fields_grouping("split", "word", stream="other")
    end = builder.set_bolt("end", End(), parallelism)
    end.shuffle_grouping("pair").shuffle_grouping("whole")
    builder.set_bolt("every", End(), 3).all_grouping("whole").custom_grouping("pair", Three())
    builder.set_bolt("lines-too", End(), 2).all_grouping("lines")
    return builder.build()


LINES = ["a b c", "a a a", "", "long words and a few of them", "x"]
IDENTITIES = [f"message-{n}" for n in range(len(LINES))]


def seen(pump: Pump, lines: list[str], identities: list[Any] | None) -> Counter:
    Look.seen.clear()
    pump.feed(*([line] for line in lines), identities=identities)
    pump.run()
    assert not pump.failed
    return Counter((component, values, key) for component, _, values, key in Look.seen)


def test_the_keys_are_the_same_at_each_delivery_and_with_any_parallelism() -> None:
    once = seen(Pump(topology(1)), LINES, IDENTITIES)
    assert None not in {key for _, _, key in once}
    pump = Pump(topology(4))
    for _ in range(3):
        assert seen(pump, LINES, IDENTITIES) == once
    assert seen(pump, LINES[::-1], IDENTITIES[::-1]) == once


def test_no_two_tuples_of_the_trees_have_one_key() -> None:
    found = seen(Pump(topology(2)), LINES, IDENTITIES)
    keys = Counter(key for _, _, key in found.elements())
    assert max(keys.values()) == 1
    assert all(len(key) == 16 for key in keys)


def test_tuples_that_are_emitted_together_have_the_keys_of_those_emitted_alone() -> None:
    alone = seen(Pump(topology(2)), LINES * 10, [f"m{n}" for n in range(50)])
    assert len(alone) > collector._FEW
    Look.seen.clear()
    pump = Pump(topology(2))
    roots = pump._roots.draw(50)
    pump.emitters["lines"][0].emit_all(
        [[line] for line in LINES * 10], roots, "default", [f"m{n}" for n in range(50)]
    )
    pump.run()
    assert Counter((component, values, key) for component, _, values, key in Look.seen) == alone


def test_a_message_without_an_identity_has_no_keys_and_its_neighbours_have_theirs() -> None:
    with_keys = seen(Pump(topology(2)), LINES, IDENTITIES)
    mixed = [None if n % 2 else identity for n, identity in enumerate(IDENTITIES)]
    found = seen(Pump(topology(2)), LINES, mixed)
    assert {key for _, _, key in found} - {None} < {key for _, _, key in with_keys}
    assert sum(found.values()) == sum(with_keys.values())
    assert None in {key for _, _, key in found}
    nothing = seen(Pump(topology(2)), LINES, None)
    assert {key for _, _, key in nothing} == {None}


def test_chunks_without_keys_have_no_column_for_them() -> None:
    pump = Pump(topology(1))
    pump.feed(["a"])
    pump.send()
    assert all(chunk.lineage.keys is None for chunk in pump.chunks("split"))


class Hold(Look, Bolt):
    output_fields = "both string"

    def prepare(self, config, context):
        super().prepare(config, context)
        self.first = None

    def execute(self, tup, collector):
        if self.first is None:
            self.first = tup
            return
        both = f"{self.first['word']}+{tup['word']}"
        collector.emit([both], anchors=[self.first, tup])
        self.note([self.first["word"]], self.first.key)
        collector.ack(self.first)
        collector.ack(tup)
        self.first = None


def joined(pump: Pump, *, killed: bool) -> list[Any]:
    Look.seen.clear()
    pump.feed(["a"], identities=["A"])
    pump.run()
    if killed:
        pump.take_over()
    pump.feed(["b"], identities=["B"])
    pump.run()
    assert not pump.failed
    return sorted((values, key) for _, _, values, key in Look.seen)


def test_a_held_tuple_keeps_its_key_when_its_process_dies() -> None:
    builder = TopologyBuilder("held")
    builder.set_spout("words", Source())
    builder.set_bolt("hold", Hold()).shuffle_grouping("words")
    builder.set_bolt("end", End()).shuffle_grouping("hold")
    once = joined(Pump(builder.build()), killed=False)
    assert None not in {key for _, key in once}
    assert joined(Pump(builder.build()), killed=True) == once


@pytest.mark.parametrize("tracked", [True, False])
def test_a_tuple_that_is_in_no_tree_may_have_a_key(tracked) -> None:
    pump = Pump(topology(1))
    Look.seen.clear()
    pump.feed(["a"], identities=["A"], tracked=tracked)
    pump.run()
    assert None not in {key for *_, key in Look.seen}
