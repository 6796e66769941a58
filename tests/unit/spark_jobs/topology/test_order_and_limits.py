"""``ordered_by``, ``rate_limit`` and ``rate_limit_by`` of a bolt are parsed, or refused in one
line.
"""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from tests.support.pump import Source
from tiercel import (
    ArrowBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    StatefulBolt,
    TopologyBuilder,
    TopologyError,
)
from tiercel.acker.limits import Rate
from tiercel.queues.limits import UNEMITTED_S
from tiercel.spark_jobs.topology.bolt_settings import BoltLimit, limit_of, ordered_by_of
from tiercel.spark_jobs.topology.graph import Topology

FIELDS = "customer string, tenant string, n long"


class Calls(BasicBolt):
    pass


def built(config, *groupings, second=FIELDS) -> Topology:
    """Build a bolt of two tasks that subscribes to ``one``, then to ``two`` with other fields."""
    builder = TopologyBuilder("t")
    builder.set_spout("one", Source(FIELDS))
    builder.set_spout("two", Source(second))
    declarer = builder.set_bolt("call", Calls(), parallelism=2, config=config)
    for name, (method, *fields) in zip(("one", "two"), groupings, strict=False):
        getattr(declarer, method)(name, *fields)
    return builder.build()


def refused(message, config, *groupings, second=FIELDS):
    with pytest.raises(TopologyError, match=message) as caught:
        built(config, *groupings, second=second)
    assert "\n" not in str(caught.value)


SHUFFLE = ("shuffle_grouping",)
BY_CUSTOMER = ("fields_grouping", "customer")


@pytest.mark.parametrize(
    ("setting", "groupings", "key"),
    [
        ("customer", [BY_CUSTOMER], ("customer",)),
        (["customer"], [BY_CUSTOMER, BY_CUSTOMER], ("customer",)),
        (("customer", "n"), [BY_CUSTOMER], ("customer", "n")),
        (["n", "customer"], [("fields_grouping", "customer", "n")] * 2, ("n", "customer")),
        (None, [SHUFFLE], ()),
    ],
)
def test_a_bolt_is_ordered_by_fields_that_bring_a_key_to_one_task(setting, groupings, key):
    topology = built({"ordered_by": setting}, *groupings)
    assert ordered_by_of(topology.bolts["call"]) == key
    assert ordered_by_of(pickle.loads(pickle.dumps(topology)).bolts["call"]) == key


def test_without_settings_a_bolt_has_no_order_and_no_limit():
    spec = built({}, SHUFFLE).bolts["call"]
    assert (ordered_by_of(spec), limit_of(spec)) == ((), None)


@pytest.mark.parametrize(
    "grouping",
    [
        SHUFFLE,
        ("none_grouping",),
        ("local_or_shuffle_grouping",),
        ("all_grouping",),
        ("global_grouping",),
        ("partial_key_grouping", "customer"),
        ("fields_grouping", "tenant"),
        ("fields_grouping", "customer", "n"),
    ],
)
def test_order_needs_fields_grouping_by_the_key_or_a_part_of_it(grouping):
    refused(
        "bolt 'call' is ordered by customer, and stream 'default' of 'one' may bring one key to "
        r"several tasks: subscribe by \.fields_grouping\('one', 'customer'\)",
        {"ordered_by": "customer"},
        grouping,
    )
    refused("stream 'default' of 'two' may", {"ordered_by": "customer"}, BY_CUSTOMER, grouping)


def test_order_over_two_streams_needs_the_same_grouping_of_both():
    refused(
        "groups stream 'default' of 'one' by customer, n but stream 'default' of 'two' by n, "
        "customer: group both by the same fields in the same order",
        {"ordered_by": ["customer", "n"]},
        ("fields_grouping", "customer", "n"),
        ("fields_grouping", "n", "customer"),
    )


@pytest.mark.parametrize("setting", ["ordered_by", "rate_limit_by"])
@pytest.mark.parametrize(
    ("given", "second", "message"),
    [
        (
            "costumer",
            FIELDS,
            "no field 'costumer' for {} in stream 'default' of 'one'; its fields are customer, ",
        ),
        (
            "customer",
            "customer long, n long",
            "{} names 'customer', which is a string in .* of 'one' and a long in .* of 'two'",
        ),
        ("customer", "tenant string", "there is no field 'customer' .* of 'two'"),
        *(
            (given, FIELDS, "{} must be a field, or a list of fields, not")
            for given in (3, [], ["customer", 3], ["customer", "customer"], {"customer"}, True)
        ),
    ],
)
def test_fields_that_are_none_are_refused_by_name(setting, given, second, message):
    groupings = [("fields_grouping", "n"), ("fields_grouping", "n")]
    if "n long" not in second:
        groupings[1] = SHUFFLE
    refused(
        "bolt 'call': .*" + message.format(setting),
        {setting: given, "rate_limit": 5},
        *groupings,
        second=second,
    )


def test_whole_numbers_of_several_widths_are_one_type():
    built({"ordered_by": "n"}, *[("fields_grouping", "n")] * 2, second="n int")


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"rate_limit": "100/s"}, BoltLimit(rate=Rate(permits=100))),
        (
            {"rate_limit": "5/min", "rate_limit_by": "tenant"},
            BoltLimit(rate=Rate(permits=5, seconds=60), by=("tenant",)),
        ),
        (
            {"rate_limit": 2, "rate_limit_by": ["tenant", "n"]},
            BoltLimit(rate=Rate(permits=2), by=("tenant", "n")),
        ),
        ({"rate_limit": 2, "rate_limit_by": None}, BoltLimit(rate=Rate(permits=2))),
        ({"rate_limit": None}, None),
    ],
)
def test_a_limit_is_a_rate_for_all_tuples_or_by_the_values_of_fields(config, limit):
    assert limit_of(built(config, SHUFFLE, SHUFFLE).bolts["call"]) == limit


@pytest.mark.parametrize("written", [0, "0/s", -1, "fast", "1/day", True])
def test_a_limit_that_is_no_rate_is_refused_by_name(written):
    refused("bolt 'call', rate_limit: ", {"rate_limit": written}, SHUFFLE)


def test_a_limit_by_a_field_needs_a_limit():
    refused(
        "bolt 'call' has rate_limit_by and no rate_limit: set one, such as",
        {"rate_limit_by": "tenant"},
        SHUFFLE,
    )


@pytest.mark.parametrize("setting", ["ordered_by", "rate_limit", "rate_limit_by"])
def test_they_are_settings_of_bolts_alone(setting):
    with pytest.raises(TopologyError, match=f"{setting} is a setting of bolts, and this is a sp"):
        TopologyBuilder("t").set_spout("one", Source(FIELDS), config={setting: "1/s"})


class ByHand(Bolt):
    def execute(self, tup, collector):
        pass


class Whole(ArrowBolt):
    def execute(self, batch, collector):
        pass


class Several(BatchBolt):
    def execute_batch(self, tuples, collector):
        pass


class Counts(StatefulBolt):
    def execute(self, tup, collector):
        pass


@pytest.mark.parametrize(
    ("bolt", "kind"),
    [
        (ByHand(), "Bolt"),
        (Whole(), "ArrowBolt"),
        (Several(), "BatchBolt"),
        (Counts(), "StatefulBolt"),
    ],
)
def test_a_limit_is_for_bolts_whose_tuples_begin_one_by_one(bolt, kind):
    builder = TopologyBuilder("t")
    builder.set_spout("one", Source(FIELDS))
    builder.set_bolt("call", bolt, config={"rate_limit": "1/s"}).shuffle_grouping("one")
    with pytest.raises(TopologyError, match=f"this is an? {kind}: limit a BasicBolt") as no:
        builder.build()
    assert "\n" not in str(no.value)


def test_an_order_and_a_limit_go_together_where_a_key_has_one_limit():
    both = {"ordered_by": ["customer", "tenant"], "rate_limit": "1/s", "rate_limit_by": "tenant"}
    built(both, BY_CUSTOMER)
    built({"ordered_by": "customer", "rate_limit": "1/s"}, BY_CUSTOMER)
    refused(
        "bolt 'call' is ordered by customer and has a rate limit by tenant, so that tuples of one "
        "key could wait for different limits: name the limit's fields in ordered_by too",
        {**both, "ordered_by": "customer"},
        BY_CUSTOMER,
    )


@pytest.mark.parametrize(
    ("written", "held_s"),
    # Two tasks take turns; a message may also wait for five minutes before it is emitted.
    [("100/s", None), ("2/min", None), ("1/h", 2 * 3600 + 30 + UNEMITTED_S)],
)
def test_a_broker_must_let_messages_be_held_for_as_long_as_a_slow_limit_takes(written, held_s):
    held = built({"rate_limit": written}, SHUFFLE).held
    assert held == (None if held_s is None else timedelta(seconds=held_s))


@pytest.mark.parametrize(
    ("setting", "config"),
    [
        ("ordered_by", {"ordered_by": ["customer", "headers"]}),
        ("rate_limit_by", {"rate_limit": "5/s", "rate_limit_by": "headers"}),
    ],
)
def test_a_map_is_nothing_to_go_by(setting, config) -> None:
    builder = TopologyBuilder("t")
    builder.set_spout("one", Source(f"{FIELDS}, headers map<string,string>"))
    builder.set_bolt("call", Calls(), config=config).fields_grouping("one", "customer")
    with pytest.raises(TopologyError, match=f"{setting} names 'headers', which is a map"):
        builder.build()
