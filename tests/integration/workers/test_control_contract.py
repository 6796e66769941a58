"""The contract of control, on its memory twin and on Redis."""

import time
import uuid

import pytest

from tests.support.orders import MemoryControl
from tiercel import RedisUnavailableError
from tiercel.acker.redis.clients import connect
from tiercel.workers.control.contract import NO_PAUSES, NO_REBALANCE, Rebalance, State
from tiercel.workers.control.redis_control import RedisControl


@pytest.fixture
def clock():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


@pytest.fixture(params=["memory", "redis"])
def control(request, clock):
    if request.param == "memory":
        made = MemoryControl(clock)
        made.expire = lambda seconds: setattr(clock, "now", clock.now + seconds)
    else:
        url = request.getfixturevalue("redis_url")
        made = RedisControl(url, f"control-{uuid.uuid4().hex}")
        made.lose = lambda: connect(url).delete(*connect(url).keys(f"{made._key}*"))
        made.expire = lambda seconds: expire(connect(url), made._key, seconds)
    yield made
    made.close()


def expire(client, prefix, seconds):
    """Subtract this time from the remaining life of each key."""
    for key in client.keys(f"{prefix}*"):
        left_ms = client.pttl(key)
        if left_ms >= 0:
            client.pexpire(key, left_ms - round(seconds * 1000))  # 0 or less expires at once


def test_the_last_order_counts(control):
    assert control.state() is None
    for state in (State.DEACTIVATED, State.ACTIVE, State.KILLED, State.DEACTIVATED):
        control.order(state)
        assert control.state() is state
        assert control.ask(State.ACTIVE) is state


def test_a_task_that_asks_first_says_what_the_state_is(control):
    assert control.ask(State.DEACTIVATED) is None
    assert control.state() is State.DEACTIVATED
    assert control.ask(State.ACTIVE) is State.DEACTIVATED


def test_after_a_loss_it_is_what_the_tasks_know(control):
    control.order(State.DEACTIVATED)
    control.ask(State.DEACTIVATED)
    control.lose()
    assert control.state() is None
    assert control.ask(State.DEACTIVATED) is None
    assert control.state() is State.DEACTIVATED


def test_an_order_to_end_lapses_after_a_minute_and_the_others_do_not(control):
    control.order(State.KILLED)
    control.expire(50)
    assert control.state() is State.KILLED
    control.expire(10)
    assert control.state() is None
    control.order(State.DEACTIVATED)
    control.expire(10**6)
    assert control.state() is State.DEACTIVATED


def test_a_redis_that_is_away_is_an_error_that_passes(redis):
    server = redis()
    control = RedisControl(server.url, "control")
    control.order(State.DEACTIVATED)
    server.kill()
    for call in (
        control.state,
        lambda: control.ask(State.ACTIVE),
        lambda: control.order(State.ACTIVE),
    ):
        with pytest.raises(RedisUnavailableError):
            call()


def test_orders_to_rebalance_are_counted(control):
    assert control.rebalanced(NO_REBALANCE) == NO_REBALANCE
    control.rebalance({})
    control.rebalance({})
    assert control.rebalanced(NO_REBALANCE) == Rebalance(number=2)


def test_a_number_of_tasks_that_was_ordered_stays_until_it_is_ordered_otherwise(control):
    control.rebalance({"split words, all=": 2, "count": 4})
    control.rebalance({})
    control.rebalance({"count": 3, "gone": None})
    assert control.rebalanced(NO_REBALANCE) == Rebalance(
        number=3, parallelism={"split words, all=": 2, "count": 3}
    )
    control.rebalance({"split words, all=": None})
    assert control.rebalanced(NO_REBALANCE) == Rebalance(number=4, parallelism={"count": 3})
    control.rebalance({"count": None})
    assert control.rebalanced(NO_REBALANCE) == Rebalance(number=5)


def test_an_emptied_redis_learns_the_order_from_a_driver_but_not_from_one_that_knows_none(control):
    control.rebalance({"count": 4})
    known = control.rebalanced(NO_REBALANCE)
    control.lose()
    assert control.rebalanced(NO_REBALANCE) == NO_REBALANCE
    assert control.rebalanced(known) == known
    assert control.rebalanced(NO_REBALANCE) == known


def test_an_order_to_an_emptied_redis_is_not_overwritten_by_what_the_driver_knows(control):
    known = Rebalance(number=7, parallelism={"count": 4, "split": 2})
    control.rebalance({"count": 1})
    assert control.rebalanced(known) == Rebalance(number=1, parallelism={"count": 1})


@pytest.mark.parametrize("strange", [b"0", b"many", b"-1", b"\xff", b"99999999999"])
def test_a_number_of_tasks_that_is_none_is_passed_over(redis_url, strange, caplog):
    control = RedisControl(redis_url, f"control-{uuid.uuid4().hex}")
    control.rebalance({"count": 4})
    connect(redis_url).hset(f"{control._key}:parallelism", "split", strange)
    assert control.rebalanced(NO_REBALANCE).parallelism == {"count": 4}
    assert "the number of tasks of b'split'" in caplog.text


def test_bolts_are_paused_until_they_are_resumed(control):
    assert control.paused() == frozenset()
    assert control.pauses(NO_PAUSES) == NO_PAUSES
    for bolt in ("split words", "count", "count"):
        control.pause(bolt)
    assert control.paused() == {"split words", "count"}
    control.resume("count")
    control.resume("never paused")
    found = control.pauses(NO_PAUSES)
    assert found.since_ms.keys() == {"split words"}
    assert abs(found.since_ms["split words"] / 1000 - time.time()) < 60


def test_an_emptied_redis_learns_the_paused_bolts_from_the_driver_and_never_loses_an_order(control):
    control.pause("count")
    known = control.pauses(NO_PAUSES)
    control.lose()
    assert control.paused() == frozenset()
    assert control.pauses(known) == known
    assert control.paused() == {"count"}
    control.lose()
    control.pause("split")
    assert control.pauses(known).since_ms.keys() == {"split"}
