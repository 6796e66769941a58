"""Bolts that may execute in one step, decided from the topology alone."""

from __future__ import annotations

import functools
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pump import Source
from tiercel import ArrowBolt, BasicBolt, Bolt, Config, StatefulBolt, TopologyBuilder
from tiercel.spark_jobs.topology.bolt_settings import LONGEST_ROW, chain_of
from tiercel.spark_jobs.topology.graph import cycle_of
from tiercel.spark_jobs.topology.grouping import Shuffle


class Plain(BasicBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        collector.emit([tup["n"]])


class Rich(Bolt):
    output_fields = "n long"


class Rows(ArrowBolt):
    output_fields = "n long"


class Stateful(StatefulBolt):
    output_fields = "n long"


GROUPINGS = ("shuffle", "local_or_shuffle", "none", "fields", "all", "global")


def subscribe(setter: Any, component: str, grouping: str) -> None:
    fields = ("n",) if grouping == "fields" else ()
    getattr(setter, f"{grouping}_grouping")(component, *fields)


bolts = st.lists(
    st.tuples(
        st.sampled_from([Plain, Plain, Plain, Rich, Rows, Stateful]),
        st.sampled_from([1, 2, 2]),
        st.lists(
            st.tuples(st.integers(-1, 6), st.sampled_from(("shuffle", *GROUPINGS))),
            min_size=1,
            max_size=2,
            unique_by=lambda pair: pair[0],
        ),
    ),
    min_size=1,
    max_size=7,
)


@given(bolts=bolts)
def test_the_rows_of_any_graph_are_rows_of_bolts_that_only_follow_each_other(bolts):
    builder = TopologyBuilder("graph")
    builder.set_spout("spout", Source("n long"))
    for at, (kind, parallelism, sources) in enumerate(bolts):
        setter = builder.set_bolt(f"b{at}", kind(), parallelism=parallelism)
        for source, grouping in sources:
            name = "spout" if source < 0 else f"b{source % len(bolts)}"
            if ("spout" if source < 0 else source % len(bolts)) not in [
                "spout" if other < 0 else other % len(bolts)
                for other, _ in sources[: sources.index((source, grouping))]
            ]:
                subscribe(setter, name, grouping)
    topology = builder.build()
    for head in topology.bolts:
        row = chain_of(topology, head)
        assert len({head, *row}) == len(row) + 1
        for before, bolt in zip((head, *row), row, strict=False):
            spec = topology.bolts[bolt]
            [subscription] = spec.subscriptions
            assert subscription.component == before
            assert isinstance(subscription.grouping, Shuffle)
            assert spec.parallelism == topology.bolts[before].parallelism
            assert type(spec.bolt) is type(topology.bolts[before].bolt) is Plain
            assert not cycle_of(topology, topology.task_ids(bolt)[0])
        # The rest of a row is the row of its next bolt.
        assert not row or chain_of(topology, row[0]) == row[1:]


def test_two_hundred_bolts_in_a_row_are_short_rows_found_in_a_moment():
    """Each task finds its row as it starts: this took 37 s of CPU for each task per bolt."""
    builder = TopologyBuilder("long")
    builder.set_spout("spout", Source("n long"))
    before = "spout"
    for at in range(200):
        builder.set_bolt(f"b{at}", Plain()).shuffle_grouping(before)
        before = f"b{at}"
    topology = builder.build()
    began = time.thread_time()
    rows = {head: chain_of(topology, head) for head in topology.bolts}
    assert time.thread_time() - began < 5.0
    assert rows["b0"] == tuple(f"b{at}" for at in range(1, LONGEST_ROW + 1))
    assert rows["b198"] == ("b199",)


def row(bolt: Any = None, config: Any = None, *, chaining: bool = True) -> tuple[str, ...]:
    builder = TopologyBuilder("two", Config(chaining=chaining))
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("first", Plain()).shuffle_grouping("spout")
    builder.set_bolt("next", bolt or Plain(), config=config or {}).shuffle_grouping("first")
    return chain_of(builder.build(), "first")


def test_two_plain_bolts_are_a_row_unless_it_is_switched_off():
    assert row() == ("next",)
    assert row(chaining=False) == ()


@pytest.mark.parametrize(
    "config",
    [
        {"threads": 2},
        {"rate_limit": "10/s"},
        {"tick_tuple_freq_secs": 1.0},
        {"execute_timeout_secs": 60.0},
    ],
    ids=lambda config: next(iter(config)),
)
def test_settings_that_need_a_task_of_its_own_end_a_row(config):
    assert row(config=config) == ()


def given_attribute(value: Any) -> BasicBolt:
    bolt = Plain()
    bolt.given = value  # type: ignore[attr-defined]
    return bolt


@pytest.mark.parametrize(
    "value", [1, "a", None, ("a", 1), frozenset({1}), Decimal(1), len.__class__]
)
def test_a_constant_attribute_is_no_hindrance(value):
    assert row(given_attribute(value)) == ("next",)


@pytest.mark.parametrize("value", [[], {}, set(), ([],), object()])
def test_an_attribute_that_may_change_ends_a_row(value):
    assert row(given_attribute(value)) == ()


class Transient(Plain):
    transient = frozenset({"given", "last"})

    def execute(self, tup, collector):
        self.last = tup


class Assigns(Plain):
    def execute(self, tup, collector):
        self._note(tup)

    def _note(self, tup):
        def later():
            self.last = tup

        later()


def logged(method):
    @functools.wraps(method)
    def call(self, tup, collector):
        assert call
        return method(self, tup, collector)

    return call


class Decorated(Plain):
    @logged
    def execute(self, tup, collector):
        self.last = tup


class Noting:
    def note(self, tup):
        self.last = tup


class Mixed(Plain, Noting):
    def execute(self, tup, collector):
        self.note(tup)


class Lazily(Plain):
    @functools.cached_property
    def client(self):
        return object()


class LazilyByHand(Plain):
    @property
    def client(self):
        self.last = object()
        return self.last


class LocalClient(Lazily):
    transient = frozenset({"client"})


def test_a_transient_attribute_may_change():
    bolt = Transient()
    bolt.given = []
    assert row(bolt) == ("next",)


@pytest.mark.parametrize("kind", [Assigns, Decorated, Mixed, Lazily, LazilyByHand])
def test_a_bolt_that_assigns_attributes_ends_a_row(kind):
    assert row(kind()) == ()


def test_a_cached_property_that_is_transient_is_no_hindrance():
    assert row(LocalClient()) == ("next",)
