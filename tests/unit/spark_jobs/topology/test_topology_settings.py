"""``Config`` takes what can work and refuses the rest by name."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.support.pump import Source
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Config,
    DatabaseSink,
    StatefulBolt,
    TopologyBuilder,
    TopologyError,
    WindowedBolt,
    tumbling,
)
from tiercel.spark_jobs.errors import ConfigValueError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"message_timeout_secs": 0},
            "message_timeout_secs must be a number of seconds, more than 0, not 0",
        ),
        ({"message_timeout_secs": "30"}, "message_timeout_secs must be .*, not '30'"),
        ({"message_timeout_secs": float("inf")}, "message_timeout_secs"),
        ({"message_timeout_secs": float("nan")}, "message_timeout_secs"),
        (
            {"enable_message_timeouts": "no"},
            "enable_message_timeouts must be True or False, not 'no'",
        ),
        ({"ackers": -1}, "ackers must be a number of ledger shards, or 0, not -1"),
        ({"ackers": True}, "ackers must be"),
        ({"max_spout_pending": 0}, "max_spout_pending must be at least 1, or None, not 0"),
        ({"max_spout_pending": 2.5}, "max_spout_pending must be"),
        (
            {"tick_tuple_freq_secs": 0},
            "tick_tuple_freq_secs must be a number of seconds, more than 0, or None, not 0",
        ),
        (
            {"executors": (20, 2)},
            "executors must be the least and the most, such as .2, 20., a number, or None, not",
        ),
        (
            {"shutdown_grace_secs": -1},
            "shutdown_grace_secs must be a number of seconds, not negative, not -1",
        ),
        ({"spark_options": ["a"]}, "spark_options must be a mapping with string keys"),
        ({"extra": {1: 2}}, "extra must be a mapping with string keys"),
        ({"extra": {"ackers": 2}}, "extra holds ackers: set it as a setting of its own"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(settings: dict, message: str) -> None:
    with pytest.raises(ConfigValueError, match=message):
        Config(**settings)


def test_the_defaults_are_storm_s() -> None:
    config = Config()
    assert (config.message_timeout_secs, config.ackers, config.enable_message_timeouts) == (
        30,
        1,
        True,
    )
    assert (config.max_spout_pending, config.tick_tuple_freq_secs) == (None, None)


def test_no_shutdown_grace_and_no_ackers_are_settings() -> None:
    assert Config(executors=(2, 20)).executors == (2, 20)
    assert Config(executors=4).executors == 4
    assert Config(shutdown_grace_secs=0, ackers=0).ackers == 0


def test_a_component_is_given_the_very_objects_that_were_set() -> None:
    lock = threading.Lock()
    assert Config(extra={"lock": lock}).as_mapping()["lock"] is lock


def build(bolt: Any, config: dict[str, Any] | None = None) -> None:
    builder = TopologyBuilder("places")
    builder.set_spout("spout", Source("a string"))
    builder.set_bolt("bolt", bolt, config=config).fields_grouping("spout", "a")
    builder.build()


def bolt_with(kind: type, **attributes: Any) -> Any:
    async def calls(self, tup, collector): ...

    def executes(self, tup, collector): ...

    name = "execute_batch" if kind is BatchBolt else "execute"
    work = {name: calls if kind is AsyncBolt else executes}
    return type("Own", (kind,), {**work, **attributes})()


@pytest.mark.parametrize("kind", [BasicBolt, AsyncBolt, BatchBolt, StatefulBolt, ArrowBolt, Bolt])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ordered_by", "a"),
        ("ordered_by", ["a"]),
        ("rate_limit", "100/s"),
        ("rate_limit", 5),
        ("rate_limit_by", "a"),
        ("tick_tuple_freq_secs", 1),
        ("execute_timeout_secs", 0.5),
        ("max_output_bytes", 1000),
    ],
)
def test_a_setting_in_a_class_that_is_read_in_config_is_refused(
    kind: type, name: str, value: Any
) -> None:
    with pytest.raises(TopologyError) as refused:
        build(bolt_with(kind, **{name: value}))
    assert str(refused.value).startswith(
        f"bolt 'bolt': {name} of class Own has no effect: write set_bolt(…, config="
        f'{{"{name}": {value!r}}})'
    )


def test_threads_of_a_basic_bolt_are_a_setting_and_those_of_a_bolt_its_own() -> None:
    with pytest.raises(TopologyError, match=r"write set_bolt\(…, config=.\"threads\": 16"):
        build(bolt_with(BasicBolt, threads=16))
    build(bolt_with(Bolt, threads=16))
    build(bolt_with(BasicBolt, threads=16), {"threads": 16})
    build(bolt_with(BasicBolt, rate_limit=lambda self: None, threads=threading.Event()))


def test_a_concurrency_in_a_class_that_has_none_is_refused() -> None:
    build(bolt_with(AsyncBolt, concurrency=3))
    with pytest.raises(TopologyError, match="which is for an AsyncBolt; this is a BasicBolt"):
        build(bolt_with(BasicBolt, concurrency=3))


MINUTE = tumbling(timedelta(minutes=1))


@pytest.mark.parametrize(
    ("bolt", "name", "value", "place"),
    [
        (bolt_with(StatefulBolt), "once", True, "in class Own"),
        (bolt_with(StatefulBolt), "once_retention", timedelta(days=9), "in class Own"),
        (bolt_with(BatchBolt), "on_error", "split", "in class Own"),
        (bolt_with(BasicBolt), "transient", {"model"}, "in class Own"),
        (bolt_with(WindowedBolt, window=MINUTE), "once", True, "in class Own"),
        (bolt_with(WindowedBolt, window=MINUTE), "late_stream", "late", "in class Own"),
        (DatabaseSink(None, "t"), "once", False, "as an argument of DatabaseSink"),
    ],
)
def test_a_setting_in_config_that_is_read_in_the_class_is_refused(
    bolt: Any, name: str, value: Any, place: str
) -> None:
    with pytest.raises(TopologyError) as refused:
        build(bolt, {name: value})
    assert str(refused.value) == (
        f"config of 'bolt': {name} has no effect here: write {name} = {value!r} {place}"
    )


def test_a_name_that_a_kind_of_bolt_does_not_know_is_the_user_s_own() -> None:
    build(bolt_with(BasicBolt), {"once": True, "window": 5, "on_error": "log"})


@pytest.mark.parametrize("kind", [BasicBolt, AsyncBolt, BatchBolt, ArrowBolt])
def test_once_is_refused_for_a_bolt_that_would_execute_each_delivery(kind: type) -> None:
    with pytest.raises(TopologyError, match="once set, which is for a StatefulBolt or a Windowed"):
        build(bolt_with(kind, once=True))
    build(bolt_with(Bolt, once=True))  # it may keep ``tup.key`` by itself, as DatabaseSink does
