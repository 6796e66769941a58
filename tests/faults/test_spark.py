"""What happens when executors die at the worst moments, and tasks are tried again. On a cluster of two executors."""

from __future__ import annotations

import pytest

from tests.faults.numbered import Order
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def master() -> str:
    return "local-cluster[2,1,1024]"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([Order.IN_THE_FIRST_LEVEL], "executor killed in a map stage"),
        ([Order.AFTER_THE_ACKS], "executor killed after its acks left"),
        ([Order.IN_THE_SECOND_LEVEL], "executor killed in the second level, its shuffle files lost"),
        ([Order.THEN_KILL, Order.OTHER_WORK], "executor killed, and the retried task does other work"),
    ],
)
def test_an_executor_is_killed(stack: Stack, names: list[str], said: str) -> None:
    stack.survives(f"Spark: {said}", lambda: stack.carried_out(*names))


def test_an_executor_is_killed_late_and_the_retried_tasks_do_other_work(stack: Stack) -> None:
    """Spark notices, and could not undo what the level after has done. It is the ledger that puts it right, in the same run."""
    run = stack.spark_run()
    with stack.ordered(Order.UNSTEADY):
        stack.survives(
            "Spark: executor killed late in the second level, and all retried tasks do other work",
            lambda: stack.carried_out(Order.LATE_IN_THE_SECOND_LEVEL),
        )
    assert stack.spark_run() == run
