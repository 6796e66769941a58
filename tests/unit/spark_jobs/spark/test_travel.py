"""A topology that cannot be shipped to Spark is refused in one line that says what to change."""

from __future__ import annotations

import pickle
import threading
from datetime import timedelta

import pytest

from tests.support.pump import Source
from tiercel import (
    BasicBolt,
    Config,
    CustomGrouping,
    QueueSpout,
    RetryPolicy,
    TopologyBuilder,
    TopologyError,
)
from tiercel.queues.habits import Habits, habits_of
from tiercel.spark_jobs.spark.shipping import check_travel, without_spouts


class Locked(BasicBolt):
    output_fields = "x long"

    def __init__(self) -> None:
        self.name = "fine"
        self.lock = threading.Lock()

    def execute(self, tup, collector):
        pass


class Plain(BasicBolt):
    def __init__(self, thing=None) -> None:
        self.thing = thing

    def execute(self, tup, collector):
        pass


class LockedGrouping(CustomGrouping):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def choose_tasks(self, task, values):
        return [0]


def topology(bolt, *, spout=None, config=None, grouping=None):
    builder = TopologyBuilder("travel", config)
    builder.set_spout("spout", spout or Source())
    declared = builder.set_bolt("enrich", bolt)
    if grouping is None:
        declared.shuffle_grouping("spout")
    else:
        declared.custom_grouping("spout", grouping)
    return builder.build()


def test_a_bolt_with_a_lock_is_named_with_the_attribute_in_one_line():
    with pytest.raises(TopologyError) as refused:
        check_travel(topology(Locked()))
    assert str(refused.value) == (
        "bolt 'enrich' cannot travel to Spark, because of its attribute 'lock': TypeError: cannot "
        "pickle '_thread.lock' object; make objects that cannot be "
        "pickled in prepare, not in __init__"
    )


def test_a_grouping_and_the_settings_are_named_too():
    with pytest.raises(TopologyError, match="the grouping of bolt 'enrich' on 'spout' cannot"):
        check_travel(topology(Plain(), grouping=LockedGrouping()))
    with pytest.raises(TopologyError, match="the topology's config cannot travel"):
        check_travel(topology(Plain(), config=Config(extra={"lock": threading.Lock()})))


def test_what_spark_pickles_and_python_does_not_may_travel():
    class Inner(Plain):
        pass

    check_travel(topology(Inner(lambda value: value + 1)))


def test_spouts_stay_where_they_are():
    class Holding(Source):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    found = topology(Plain(), spout=Holding())
    check_travel(found)
    travelling = without_spouts(found)
    assert not hasattr(travelling.spouts["spout"].spout, "lock")
    pickle.dumps(travelling)
    assert travelling.spouts["spout"].streams == found.spouts["spout"].streams


def test_bolts_still_know_how_messages_come_again():
    retry = RetryPolicy(longest=timedelta(seconds=90))
    slow = QueueSpout("orders", retry=retry, delivery_limit=7)
    for spout in (slow, Source()):
        travelling = without_spouts(topology(Plain(), spout=spout)).spouts["spout"].spout
        assert habits_of(travelling) == habits_of(spout)
    assert habits_of(slow) == Habits(
        retries_later=True, takes_back=True, back_off_s=90.0, retry=retry, delivery_limit=7
    )
    assert habits_of(Source()) == Habits(retries_later=False, takes_back=False, back_off_s=0.0)
