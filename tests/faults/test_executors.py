"""What happens when executors die at the worst moments, and tasks are tried again. On a cluster of two executors."""

from __future__ import annotations

import pytest

from tests.faults.numbered import Order
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([Order.IN_THE_FIRST_LEVEL], "executor killed in a map stage"),
        ([Order.AFTER_THE_ACKS], "executor killed after its acks left"),
        ([Order.IN_THE_SECOND_LEVEL], "executor killed in the second level, its shuffle files lost"),
        ([Order.THEN_KILL, Order.OTHER_WORK], "executor killed, and the retried task does other work"),
    ],
)
def test_an_executor_is_killed(cluster: Stack, names: list[str], said: str) -> None:
    cluster.survives(f"Spark: {said}", lambda: cluster.carried_out(*names))


def test_an_executor_is_killed_late_and_the_retried_tasks_do_other_work(cluster: Stack) -> None:
    """What the other task of the second level read is not what is there now. The ledger puts that right, in the same run."""
    run = cluster.spark_run()
    with cluster.ordered(Order.UNSTEADY):
        cluster.survives(
            "Spark: executor killed late in the second level, and all retried tasks do other work",
            lambda: cluster.carried_out(Order.LATE_IN_THE_SECOND_LEVEL),
        )
    assert cluster.spark_run() == run
