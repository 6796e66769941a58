"""Concurrency that a bolt cannot have is refused in one line when the topology is built."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.pump import Source
from tiercel import AsyncBolt, BasicBolt, Bolt, StatefulBolt, TopologyBuilder, TopologyError
from tiercel.spark_jobs.topology.bolt_settings import concurrency_of


class Waiting(Bolt):
    async def execute(self, tup, collector):
        collector.ack(tup)


class NotAsync(AsyncBolt):
    def execute(self, tup, collector):  # type: ignore[override]
        collector.emit([1])


class Generating(AsyncBolt):
    async def execute(self, tup, collector):  # type: ignore[override]
        yield tup


class Quiet(AsyncBolt):
    async def execute(self, tup, collector):
        pass


class Counting(StatefulBolt):
    def execute(self, tup, collector):
        pass


class ByHand(Bolt):
    def execute(self, tup, collector):
        collector.ack(tup)


class Plain(BasicBolt):
    def execute(self, tup, collector):
        pass


MUST = "it must be a whole number, at least 1"


@pytest.mark.parametrize(
    ("bolt", "config", "said"),
    [
        (NotAsync(), {}, "execute of an AsyncBolt must be async: write `async def execute`"),
        (
            Generating(),
            {},
            "execute is an async generator and would never run: write an async method, with emit",
        ),
        (Waiting(), {}, "execute is async and would never run: write a plain method, or derive"),
        (Quiet(), {"concurrency": 0}, f"has concurrency 0: {MUST}"),
        (Quiet(), {"concurrency": "many"}, f"has concurrency 'many': {MUST}"),
        (Quiet(), {"concurrency": None}, f"has concurrency None: {MUST}"),
        (Quiet(), {"concurrency": True}, f"has concurrency True: {MUST}"),
        (Quiet(), {"threads": 4}, "are for a BasicBolt; this is an AsyncBolt"),
        (Plain(), {"threads": 0}, f"has threads 0: {MUST}"),
        (Plain(), {"threads": 1.5}, f"has threads 1.5: {MUST}"),
        (
            Plain(),
            {"concurrency": 4},
            "has a concurrency, which is for an AsyncBolt; this is a BasicBolt",
        ),
        (Counting(), {"threads": 4}, "are for a BasicBolt; this is a StatefulBolt"),
        (ByHand(), {"threads": 4}, "are for a BasicBolt; this is a Bolt"),
    ],
)
def test_calls_that_a_bolt_cannot_have_are_refused_in_one_line(
    bolt: Any, config: dict[str, Any], said: str
) -> None:
    builder = TopologyBuilder("refused")
    builder.set_spout("spout", Source("n long"))

    def build() -> None:
        builder.set_bolt("bolt", bolt, config=config).shuffle_grouping("spout")
        builder.build()

    with pytest.raises(TopologyError, match="bolt 'bolt'") as refused:
        build()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("bolt", "config", "places"),
    [
        (Quiet(), {}, 100),
        (Quiet(), {"concurrency": 500}, 500),
        (Plain(), {}, None),
        (Plain(), {"threads": 16}, 16),
        (ByHand(), {}, None),
    ],
)
def test_places_of_a_task(bolt: Any, config: dict[str, Any], places: int | None) -> None:
    builder = TopologyBuilder("places")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("bolt", bolt, config=config).shuffle_grouping("spout")
    assert concurrency_of(builder.build().bolts["bolt"]) == places
