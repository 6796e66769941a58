"""Each fault under a steady load: everything is processed, nothing is left behind, and the old rate
is soon back.
"""

from __future__ import annotations

import threading

import pytest

from tests.faults import numbered
from tests.faults.catalogue import FAULTS, QUICK, SLOW, TOGETHER, failed_back, failed_over
from tests.faults.stack import Stack
from tests.support.broker import plain_channel

pytestmark = pytest.mark.timeout(900)

_SPARK_STARTS_AGAIN = ("driver", "Spark")


_MARKS = {**dict.fromkeys(SLOW, pytest.mark.slow), **dict.fromkeys(QUICK, pytest.mark.quick)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_MARKS.get(name, ())) for name in FAULTS]
)
def test_a_fault_is_survived(stack: Stack, name: str) -> None:
    shown = stack.survives(name, lambda: FAULTS[name](stack))
    # Generous, for a slow machine with other work. The report has the targets.
    assert shown.recovery_s < (150 if name.startswith(_SPARK_STARTS_AGAIN) else 75)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), TOGETHER)
def test_two_faults_at_once(stack: Stack, first: str, second: str) -> None:
    def both() -> None:
        other = threading.Thread(target=FAULTS[second], args=[stack])
        other.start()
        FAULTS[first](stack)
        other.join()

    stack.survives(f"{first}; and {second}", both, faults=lambda: 2)


def test_the_queue_is_deleted_and_declared_again(stack: Stack) -> None:
    """The operator has deleted its messages; later ones are processed."""
    with plain_channel(stack.rabbitmq.url) as channel:
        channel.queue_delete(numbered.QUEUE)
    stack.wait_for_the_queue()
    stack.survives("broker: queue deleted and declared again, then the load", lambda: None)


def test_a_failover_to_a_replica_that_is_empty_and_back(stack: Stack) -> None:
    stack.survives("Redis: failover to an empty replica", lambda: failed_over(stack))
    stack.survives("Redis: failover back, with nothing kept", lambda: failed_back(stack))
