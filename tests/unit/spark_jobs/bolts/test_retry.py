"""``Retry``: the policy itself, and the waits of tenacity's strategies."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from tenacity import (
    wait_chain,
    wait_exception,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)

from tiercel import BasicBolt, ConfigValueError, Retry, RetryPolicy, TopologyBuilder, TopologyError
from tiercel.queues.limits import UNEMITTED_S
from tiercel.testing import FeederSpout

ERROR = TimeoutError("no")


def waits(retry: Retry) -> list[float]:
    """Return all waits of a tuple that always fails."""
    found: list[float] = []
    while (wait_s := retry.next_wait_s(ERROR, len(found) + 1, sum(found))) is not None:
        found.append(wait_s)
    return found


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        (2, [2, 2, 2]),
        (0, [0, 0, 0]),
        (timedelta(minutes=1), [60, 60, 60]),
        (wait_none(), [0, 0, 0]),
        (wait_fixed(3), [3, 3, 3]),
        (wait_incrementing(1, 2), [1, 3, 5]),
        (wait_exponential(multiplier=1, max=3), [1, 2, 3]),
        (wait_chain(wait_fixed(1), wait_fixed(5)), [1, 5, 5]),
        (wait_fixed(1) + wait_exponential(), [2, 3, 5]),
        (wait_exception(lambda error: 7.0 if error is ERROR else 0.0), [7, 7, 7]),
        (lambda state: state.attempt_number + state.idle_for, [1, 3, 7]),
    ],
)
def test_the_waits_are_those_of_the_strategy(wait: Any, expected: list[float]) -> None:
    assert waits(Retry(attempts=4, wait=wait)) == expected


@pytest.mark.parametrize(
    ("wait", "longest_s"),
    [
        (None, 15),
        (wait_random(1, 4), 12),
        (wait_random_exponential(multiplier=2, max=5), 11),
        (wait_random_exponential(multiplier=1, max=5, min=3), 10),
        (wait_exponential_jitter(max=3, jitter=0.5), 7),
        (wait_fixed(1) + wait_random(0, 2), 9),
        (wait_chain(wait_fixed(1), wait_random(0, 3)), 7),
    ],
)
def test_a_strategy_with_chance_never_waits_longer_than_is_known(
    wait: Any, longest_s: float
) -> None:
    retry = Retry(attempts=5 if wait is None else 4, wait=wait)
    assert retry.longest_s == pytest.approx(longest_s)
    assert max(sum(waits(retry)) for _ in range(200)) <= longest_s


def test_a_strategy_of_unknown_length_waits_ten_minutes_at_most() -> None:
    retry = Retry(attempts=100, wait=lambda _: 250.0)
    assert (retry.longest_s, waits(retry)) == (600, [250.0, 250.0])


def test_all_but_the_last_attempt_are_followed_by_another() -> None:
    assert len(waits(Retry(attempts=7, wait=0))) == 6
    assert waits(Retry(attempts=1)) == []


async def asks(error):
    return False


def test_errors_are_named_by_class_classes_or_a_function() -> None:
    assert Retry().takes(ERROR)
    assert not Retry().takes(KeyboardInterrupt())
    assert Retry(on=OSError).takes(ERROR)
    assert not Retry(on=(KeyError, ValueError)).takes(ERROR)
    assert Retry(on=lambda error: "no" in str(error)).takes(ERROR)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attempts": 0}, "attempts must be a whole number from 1 to 1,000, not 0"),
        ({"attempts": True}, "attempts must be"),
        ({"attempts": 1001}, "attempts must be"),
        ({"wait": -1}, "wait must be a number of seconds"),
        ({"wait": "2 s"}, "wait must be a number of seconds"),
        ({"wait": wait_fixed}, "wait must be a number of seconds"),
        ({"wait": float("nan")}, "wait must be a number of seconds"),
        ({"on": ()}, "on must be an exception class"),
        ({"on": "HTTPError"}, "on must be an exception class"),
        ({"on": int}, "on must be an exception class"),
        ({"on": asks}, "or a plain function that gets the exception, not <function asks"),
        ({"attempts": 3, "wait": timedelta(days=1)}, "may wait for 48.0 h.*raise RetryLater"),
        ({"attempts": 100, "wait": wait_exponential()}, "may wait for years"),
        ({"wait": float("inf")}, "may wait for years"),
    ],
)
def test_bad_policies_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigValueError, match=message):
        Retry(**settings)


def test_it_travels() -> None:
    retry = Retry(attempts=3, wait=wait_exponential(max=9) + wait_random(0, 1), on=OSError)
    there = pickle.loads(pickle.dumps(retry))
    assert (there.attempts, there.longest_s, there.on) == (3, retry.longest_s, (OSError,))
    assert repr(there) == repr(retry)


class Calls(BasicBolt):
    retry = Retry(attempts=3, wait=60)

    def execute(self, tup, collector):
        pass


def built(bolt: Any, config: Any = None) -> Any:
    builder = TopologyBuilder("calls")
    builder.set_spout("jobs", FeederSpout(fields="n long"))
    builder.set_bolt("call", bolt, config=config).shuffle_grouping("jobs")
    return builder.build()


def test_a_setting_of_the_topology_overrides_the_class() -> None:
    own = Retry(attempts=2)
    assert built(Calls()).bolts["call"].retry is Calls.retry
    assert built(Calls(), {"retry": own}).bolts["call"].retry is own
    assert built(Calls(), {"retry": None}).bolts["call"].retry is None


@pytest.mark.parametrize("given", [3, RetryPolicy(), True, wait_fixed(1)])
def test_what_is_no_policy_is_refused(given: Any) -> None:
    with pytest.raises(TopologyError, match=r"bolt 'call': retry must be a Retry, such as"):
        built(Calls(), {"retry": given})


def test_a_method_of_that_name_is_the_bolts_own() -> None:
    class Own(BasicBolt):
        def retry(self):  # type: ignore[override]
            """Method of the user's own."""

        def execute(self, tup, collector):
            pass

    assert built(Own()).bolts["call"].retry is None


def test_a_spout_has_no_retry() -> None:
    builder = TopologyBuilder("calls")
    with pytest.raises(TopologyError, match="retry is a setting of bolts"):
        builder.set_spout("jobs", FeederSpout(fields="n long"), config={"retry": Retry()})


def test_the_longest_wait_counts_towards_the_brokers_consumer_timeout() -> None:
    # Two waits of a minute, each followed by an attempt that may take the whole message timeout.
    assert built(Calls()).held.total_seconds() == 30 + 2 * 60 + 2 * 30 + UNEMITTED_S
    assert built(Calls(), {"retry": Retry(attempts=2, wait=1)}).held is None
