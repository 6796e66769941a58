"""A spout's tuples become chunks and roots; a bad one is refused before anything is recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import xor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.emitter import SpoutEmitter
from tests.support.pump import Source
from tiercel import BasicBolt, Config, OutputLimitError, TopologyBuilder
from tiercel.acker.ids import edge, line_of, seed
from tiercel.acker.inbox.chunk import PARCEL_BYTES, decode
from tiercel.spark_jobs.errors import BadValuesError, DirectStreamError, UnknownStreamError


class Pass(BasicBolt):
    output_fields = "word string"


class Moody:
    def prepare(self, context, stream, target_tasks):
        pass

    def choose_tasks(self, task_id, values):
        raise RuntimeError("no")


def emitter(custom: object = None) -> SpoutEmitter:
    builder = TopologyBuilder("emission")
    builder.set_spout("source", Source("word string, n long"))
    builder.set_bolt("near", Pass(), parallelism=2).all_grouping("source")
    far = builder.set_bolt("far", Pass()).shuffle_grouping("near")
    if custom:
        far.custom_grouping("source", custom)
    else:
        far.shuffle_grouping("source")
    return SpoutEmitter(builder.build(), "source", 1)


def chunks_of(emission) -> list:
    return [decode(one) for parcel in emission.parcels for one in parcel.chunks]


def test_the_ack_val_of_a_root_is_the_xor_of_the_edges_of_its_copies() -> None:
    made = emitter()
    assert made.emit(["a", 1], 77, "default") == [2, 3, 4]
    assert made.emit(["b", 2], 78, "default") == [2, 3, 4]
    emission = made.take()
    assert emission.roots == [77, 78]
    assert emission.ack_vals == [
        reduce(xor, (edge(seed(root, 0), 0, task) for task in (2, 3, 4))) for root in (77, 78)
    ]
    chunks = chunks_of(emission)
    assert [chunk.route.target_task for chunk in chunks] == [2, 3, 4]
    assert all(chunk.values.to_pydict() == {"word": ["a", "b"], "n": [1, 2]} for chunk in chunks)
    assert all(chunk.lineage.roots.tolist() == [77, 78] for chunk in chunks)
    assert [parcel.target for parcel in emission.parcels] == [2, 3, 4]
    assert [parcel.tuples for parcel in emission.parcels] == [[2]] * 3
    assert all(parcel.bounded for parcel in emission.parcels)


def test_what_was_taken_is_not_taken_again() -> None:
    made = emitter()
    made.emit(["a", 1], 77, "default")
    made.take()
    emission = made.take()
    assert (emission.parcels, emission.roots, emission.ack_vals) == ([], [], [])


def test_a_tuple_without_a_root_is_in_no_tree() -> None:
    made = emitter()
    made.emit(["a", 1], None, "default")
    made.emit(["b", 2], 5, "default")
    emission = made.take()
    assert emission.roots == [5]
    assert [chunk.lineage.offsets.tolist() for chunk in chunks_of(emission)] == [[0, 0, 1]] * 3


@pytest.mark.parametrize(
    "values", [["a"], ["a", 1, 2], "ab", ["a", "one"], [3, 1], ["a", 1 << 63], ["\ud800", 1]]
)
def test_values_that_do_not_fit_are_refused_and_nothing_is_recorded(values: list) -> None:
    made = emitter()
    with pytest.raises(BadValuesError, match="'source'"):
        made.emit(values, 77, "default")
    assert made.take().roots == []


def test_an_unknown_stream_is_refused() -> None:
    with pytest.raises(
        UnknownStreamError, match="'source' emits on stream 'late'; its streams are default"
    ):
        emitter().emit(["a", 1], 77, "late")


def test_a_grouping_that_raises_leaves_nothing_behind() -> None:
    made = emitter(Moody())
    with pytest.raises(RuntimeError):
        made.emit(["a", 1], 77, "default")
    assert (made.take().parcels, made.take().roots) == ([], [])


def test_a_list_that_the_spout_uses_again_is_not_the_tuple() -> None:
    made = emitter()
    values = ["a", 1]
    made.emit(values, 77, "default")
    values[0] = "b"
    assert chunks_of(made.take())[0].values.to_pydict()["word"] == ["a"]


@pytest.mark.parametrize(
    "made",
    [lambda: map(int, "12"), lambda: (n for n in (1, 2)), {1: "a", 2: "b"}.keys],
    ids=["a map", "a generator", "keys"],
)
def test_each_receiver_of_an_iterator_gets_all_of_its_values(made: Callable) -> None:
    builder = TopologyBuilder("emission")
    builder.set_spout("source", Source("flat array<long>, nested array<array<long>>"))
    builder.set_bolt("everywhere", Pass(), parallelism=3).all_grouping("source")
    spout = SpoutEmitter(builder.build(), "source", 1)
    spout.emit([made(), [made()]], 77, "default")
    columns = {"flat": [[1, 2]], "nested": [[[1, 2]]]}
    assert [chunk.values.to_pydict() for chunk in chunks_of(spout.take())] == [columns] * 3


class ByLength:
    def prepare(self, context, stream, target_tasks):
        self.tasks = target_tasks

    def choose_tasks(self, task_id, values):
        return self.tasks[: len(values[0] or "") % (len(self.tasks) + 1)]


def every_way() -> SpoutEmitter:
    """Add a bolt of three tasks for each grouping."""
    builder = TopologyBuilder("emission")
    builder.set_spout("source", Source("word string, n long"))
    builder.set_bolt("shuffled", Pass(), parallelism=3).shuffle_grouping("source")
    builder.set_bolt("grouped", Pass(), parallelism=3).fields_grouping("source", "word", "n")
    builder.set_bolt("divided", Pass(), parallelism=3).partial_key_grouping("source", "n")
    builder.set_bolt("everywhere", Pass(), parallelism=3).all_grouping("source")
    builder.set_bolt("one", Pass(), parallelism=3).global_grouping("source")
    builder.set_bolt("own", Pass(), parallelism=3).custom_grouping("source", ByLength())
    return SpoutEmitter(builder.build(), "source", 1)


rows = st.lists(
    st.tuples(st.text(max_size=3) | st.none(), st.integers(-3, 3) | st.none()), max_size=20
)


@given(st.lists(st.tuples(st.booleans(), rows), max_size=4), st.booleans())
def test_many_tuples_at_once_are_what_each_would_have_been(calls: list, tracked: bool) -> None:
    together = every_way()
    apart = every_way()
    roots = iter(range(10**18, 0, -1))
    for whole, given_rows in calls:
        mine = [next(roots) if tracked else None for _ in given_rows]
        for row, root in zip(given_rows, mine, strict=True):
            apart.emit(row, root, "default")
        if whole:
            together.emit_all(given_rows, mine, "default")
        else:
            for row, root in zip(given_rows, mine, strict=True):
                together.emit(row, root, "default")
    ours = together.take()
    theirs = apart.take()
    assert (ours.tuples, ours.transferred) == (theirs.tuples, theirs.transferred)
    assert (ours.roots, ours.ack_vals) == (theirs.roots, theirs.ack_vals)
    assert sent_by(ours) == sent_by(theirs)


class Aside(Source):
    """Has a second stream."""

    def __init__(self) -> None:
        self.output_streams = {"default": "word string, n long", "aside": "word string, n long"}


def test_a_spout_sends_what_it_shuffles_to_one_line_for_each_bolt() -> None:
    builder = TopologyBuilder("emission")
    builder.set_spout("source", Aside())
    for bolt, stream in ("near", "default"), ("far", "aside"):
        builder.set_bolt(bolt, Pass(), parallelism=4).shuffle_grouping("source", stream)
    made = SpoutEmitter(builder.build(), "source", 1)
    for number in range(50):
        assert made.emit(["a", number], 2 * number + 1, "default") == []
        made.emit(["a", number], 2 * number + 2, "aside")
    made.emit_all([["a", number] for number in range(110)], list(range(1_000, 1_110)), "default")
    counts = {parcel.target: sum(parcel.tuples) for parcel in made.take().parcels}
    assert counts == {line_of(range(2, 6)): 160, line_of(range(6, 10)): 50}


def test_what_goes_to_a_line_is_cut_so_that_a_claim_copies_little() -> None:
    builder = TopologyBuilder("emission")
    builder.set_spout("source", Source("word string, n long"))
    builder.set_bolt("slow", Pass(), parallelism=4).shuffle_grouping("source")
    made = SpoutEmitter(builder.build(), "source", 1)
    made.emit_all(
        [["a" * 1_000, number] for number in range(1_000)], list(range(1, 1_001)), "default"
    )
    [parcel] = made.take().parcels
    assert sum(parcel.tuples) == 1_000
    assert max(map(len, parcel.chunks)) < 100_000


def sent_by(emission) -> list:
    """Return the content of the emission's chunks in a fixed order: single tuples after batches."""
    return [
        (parcel.target, sum(parcel.tuples), sent(decode(one)))
        for parcel in emission.parcels
        for one in parcel.chunks
    ]


def sent(chunk) -> tuple:
    values = list(zip(*[column.to_pylist() for column in chunk.values.columns], strict=True))
    if not len(chunk.lineage.roots):
        return chunk.route, sorted(map(repr, values))
    tuples = zip(chunk.lineage.roots.tolist(), chunk.lineage.edges.tolist(), values, strict=True)
    return chunk.route, sorted(tuples, key=lambda one: one[0])


@pytest.mark.parametrize(
    "bad", [["a"], ["a", 1, 2], "ab", ["a", "one"], [3, 1], ["a", 1 << 63], ["\ud800", 1]]
)
def test_one_bad_tuple_among_many_refuses_all_of_them(bad: list) -> None:
    made = emitter()
    with pytest.raises(BadValuesError, match="'source'"):
        made.emit_all([["a", 1], bad], [77, 78], "default")
    assert (made.take().parcels, made.take().roots) == ([], [])


def test_many_tuples_on_a_direct_stream_are_refused() -> None:
    with pytest.raises(DirectStreamError):
        naming().emit_all([["a", []]], [77], "named")


class Naming(Source):
    """Has a direct stream beside its default stream."""

    def __init__(self) -> None:
        super().__init__("word string")
        self.output_streams = {"named": "word string, tags array<string>"}
        self.direct_streams = {"named"}


def naming() -> SpoutEmitter:
    builder = TopologyBuilder("emission")
    builder.set_spout("source", Naming())
    builder.set_bolt("plain", Pass()).shuffle_grouping("source")
    builder.set_bolt("chosen", Pass(), parallelism=3).direct_grouping("source", stream="named")
    return SpoutEmitter(builder.build(), "source", 1)


def test_a_direct_emission_goes_to_the_named_task_alone_and_into_its_tree() -> None:
    made = naming()
    tags = ["x"]
    made.emit_direct(4, ["a", tags], 77, "named")
    made.emit_direct(5, ["b", None], None, "named")
    tags.append("used again")
    emission = made.take()
    first, second = chunks_of(emission)
    assert (first.route.target_task, second.route.target_task) == (4, 5)
    assert first.values.to_pydict() == {"word": ["a"], "tags": [["x"]]}
    assert (emission.roots, emission.ack_vals) == ([77], [edge(seed(77, 0), 0, 4)])
    assert second.lineage.roots.tolist() == []


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda made: made.emit(["a", []], 7, "named"),
            DirectStreamError,
            "stream 'named', which is direct: use emit_direct",
        ),
        (
            lambda made: made.emit_direct(2, ["a"], 7, "default"),
            DirectStreamError,
            "which is not direct: use emit, or",
        ),
        (
            lambda made: made.emit_direct(2, ["a", []], 7, "named"),
            DirectStreamError,
            "that receive stream 'named' are 3, 4, 5",
        ),
        (
            lambda made: made.emit_direct("chosen", ["a", []], 7, "named"),
            DirectStreamError,
            "emits directly to task 'chosen'",
        ),
        (
            lambda made: made.emit_direct(3, ["a"], 7, "named"),
            BadValuesError,
            "give a list with one value for each of",
        ),
        (
            lambda made: made.emit_direct(3, ["a", [1]], 7, "named"),
            BadValuesError,
            "'source', stream 'named'",
        ),
        (
            lambda made: made.emit_direct(3, ["a"], 7, "late"),
            UnknownStreamError,
            "its streams are named, default",
        ),
    ],
)
def test_a_direct_emission_that_breaks_a_rule_is_refused_and_nothing_is_recorded(
    call, error, said
) -> None:
    made = naming()
    with pytest.raises(error, match=said):
        call(made)
    emission = made.take()
    assert (emission.parcels, emission.roots) == ([], [])


@pytest.mark.parametrize("count", [1, 40])
def test_a_tuple_that_is_larger_than_the_limit_is_refused_and_nothing_is_recorded(count):
    builder = TopologyBuilder("large", Config(max_output_bytes=1_000))
    builder.set_spout("orders", Source("word string"))
    builder.set_bolt("look", Pass()).shuffle_grouping("orders")
    made = SpoutEmitter(builder.build(), "orders", 1)
    made.emit_all([["x" * 500]] * count, range(1, count + 1), "default")
    with pytest.raises(OutputLimitError, match="'orders' emits more than 1000 bytes in one call"):
        made.emit_all([*[["x"]] * (count - 1), ["x" * 2_000]], range(101, 101 + count), "default")
    with pytest.raises(OutputLimitError):
        made.emit(["x" * 2_000], 7, "default")
    assert made.take().roots == list(range(1, count + 1))
    assert made.size == 0


def test_a_large_emission_leaves_in_parts_whatever_its_values_are_like():
    builder = TopologyBuilder("large")
    builder.set_spout("orders", Source("text string, n long"))
    builder.set_bolt("look", Pass()).shuffle_grouping("orders")
    made = SpoutEmitter(builder.build(), "orders", 1)
    rows = [["é" * (3 * PARCEL_BYTES // 2 if n == 20 else 300_000), n] for n in range(40)]
    made.emit_all(rows, range(1, 41), "default", [f"id {n}" for n in range(40)])
    emission = made.take()
    assert [parcel.part for parcel in emission.parcels] == list(range(len(emission.parcels)))
    large = [parcel for parcel in emission.parcels if parcel.bytes > PARCEL_BYTES]
    assert [parcel.tuples for parcel in large] == [[1]]
    chunks = chunks_of(emission)
    assert [row for chunk in chunks for row in chunk.values["n"].to_pylist()] == list(range(40))
    assert [one for chunk in chunks for one in chunk.lineage.roots.tolist()] == list(range(1, 41))
    assert sum(len(chunk.lineage.keys) for chunk in chunks) == 40
