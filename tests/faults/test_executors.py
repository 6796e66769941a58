"""Executors die at the worst moments, and what they had sealed is repeated. On a cluster of two executors."""

from __future__ import annotations

import pytest

from tests.faults.numbered import Order
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([Order.IN_THE_FIRST_BOLT], "executor killed in the first bolt's `flush`"),
        ([Order.AFTER_THE_ACKS], "executor killed after its acks left"),
        ([Order.IN_THE_SECOND_BOLT], "executor killed in the second bolt's `flush`"),
        ([Order.THEN_KILL, Order.OTHER_WORK], "executor killed, and the repeated step does other work"),
    ],
)
def test_an_executor_is_killed(cluster: Stack, names: list[str], said: str) -> None:
    cluster.survives(f"Spark: {said}", lambda: cluster.carried_out(*names))


def test_an_executor_is_killed_late_and_the_repeated_steps_do_other_work(cluster: Stack) -> None:
    """What the second bolt was sent is not what the first one sends now. The ledger puts that right, in the same run."""
    run = cluster.spark_run()
    with cluster.ordered(Order.UNSTEADY):
        cluster.survives(
            "Spark: executor killed late in the second bolt's `flush`, and all repeated steps do other work",
            lambda: cluster.carried_out(Order.LATE_IN_THE_SECOND_BOLT),
        )
    assert cluster.spark_run() == run
