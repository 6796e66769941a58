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
    stack.survives(said, lambda: stack.carried_out(*names))
