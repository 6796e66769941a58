"""A bolt with ``once`` is refused if no message can have an identity."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.pump import Source
from tiercel import (
    BasicBolt,
    DatabaseSink,
    QueueSpout,
    StatefulBolt,
    TopologyBuilder,
    TopologyError,
)


class Count(StatefulBolt):
    once = True


class Pass(BasicBolt):
    output_fields = "body string"


def building(bolt, *spouts):
    builder = TopologyBuilder("identities")
    builder.set_bolt("count", bolt).shuffle_grouping("between")
    between = builder.set_bolt("between", Pass())
    for number, spout in enumerate(spouts):
        builder.set_spout(f"spout-{number}", spout)
        between.shuffle_grouping(f"spout-{number}")
    between.shuffle_grouping("between")  # a cycle
    return builder.build()


@pytest.mark.parametrize("bolt", [Count(), DatabaseSink("sqlite:///x.db", "t")])
def test_without_an_identity_nothing_can_be_once(bolt):
    with pytest.raises(TopologyError, match="set one in the spout 'spout-0', such as QueueSpout"):
        building(bolt, QueueSpout("a"), QueueSpout("b"))


@pytest.mark.parametrize(
    "spouts",
    [
        [QueueSpout("a", identity="body")],
        [QueueSpout("a"), QueueSpout("b", identity="header:id")],
        [Source("body string")],
    ],
)
def test_one_spout_that_may_name_its_messages_is_enough(spouts):
    assert building(Count(), *spouts)


def test_without_once_no_identity_is_asked_for():
    assert building(Pass(), QueueSpout("a"))
    assert building(DatabaseSink("sqlite:///x.db", "t", once=False), QueueSpout("a"))


@pytest.mark.parametrize(
    "retention", [timedelta(seconds=59), timedelta(days=9999), 60, None, timedelta(days=-1)]
)
def test_a_retention_that_no_message_outlives_is_refused(retention):
    bolt = Count()
    bolt.once_retention = retention
    with pytest.raises(TopologyError, match="once_retention must be a timedelta of a minute"):
        building(bolt, Source("body string"))


def test_once_is_yes_or_no():
    bolt = Count()
    bolt.once = "yes"  # type: ignore[assignment]
    with pytest.raises(TopologyError, match="once must be True or False"):
        building(bolt, Source("body string"))
