"""Settings of a topology in a spout worker; nothing connects."""

from datetime import timedelta

import pytest

from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder
from tiercel.workers.errors import UsageError
from tiercel.workers.spout.admission import FIRST_BOUND
from tiercel.workers.spout.process import SpoutProcess


def process(component="lines", task_index=0, overrides=None, **config):
    builder = TopologyBuilder("settings", Config(**config))
    builder.set_spout("lines", QueueSpout("lines"), parallelism=2, config=overrides)
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("lines")
    return SpoutProcess(
        builder.build(),
        component,
        task_index,
        amqp_url="amqp://127.0.0.1:1",
        redis_urls=("redis://127.0.0.1:1",),
        management_url="http://127.0.0.1:2",
    )


def settings(**config):
    return process(**config).task._settings


def test_the_message_timeout_is_thirty_seconds_or_what_is_set_or_none_at_all():
    assert settings().message_timeout == timedelta(seconds=30)
    assert settings(message_timeout_secs=2.5).message_timeout == timedelta(seconds=2.5)
    assert settings(message_timeout_secs=2.5, enable_message_timeouts=False).message_timeout is None


def test_the_bound_on_what_is_in_flight_is_fixed_if_it_is_set_for_the_topology_or_the_spout():
    assert settings().admission.bound == FIRST_BOUND
    assert settings(max_spout_pending=7).admission.bound == 7
    admission = settings(max_spout_pending=7, overrides={"max_spout_pending": 9}).admission
    for now in range(1, 200):
        admission.reached(float(now))
        admission.completed(9, 0.1, now + 0.01)
    assert admission.bound == 9


@pytest.mark.parametrize(("ackers", "tracked"), [(0, False), (1, True), (3, True)])
def test_without_ackers_nothing_is_tracked(ackers, tracked):
    assert process(ackers=ackers).task._tracked is tracked


def test_the_grace_time_is_what_is_set():
    assert settings(shutdown_grace_secs=3).grace == timedelta(seconds=3)


@pytest.mark.parametrize(
    ("overrides", "management"),
    [
        (None, "http://127.0.0.1:2"),
        ({"amqp_url": "amqp://127.0.0.1:1"}, "http://127.0.0.1:2"),
        ({"amqp_url": "amqp://other:secret@127.0.0.1:3"}, None),
        ({"amqp_url": "amqp://127.0.0.1:3", "management_url": "http://127.0.0.1:4"},
         "http://127.0.0.1:4"),
    ],
)  # fmt: skip
def test_the_http_api_of_one_broker_is_not_asked_about_another(overrides, management):
    assert process(overrides=overrides)._config["management_url"] == management


def test_a_task_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match="its spouts are lines"):
        process("nobody")
    with pytest.raises(UsageError, match="tasks 0 to 1, there is no task 2"):
        process(task_index=2)
