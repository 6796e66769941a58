"""``Config`` takes what can work and refuses the rest by name."""

from __future__ import annotations

import threading

import pytest

from tiercel import Config
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
