"""What happens when executors die at the worst moments, and tasks are tried again. On a cluster of two executors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.numbered import Order
from tests.faults.stack import Stack
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("effects"), master="local-cluster[2,1,1024]") as running:
        yield running


def order(folder: Path, *names: str) -> None:
    """Give the orders, and wait until somebody has taken them all."""
    place = Order.place(folder)
    place.mkdir(exist_ok=True)
    for name in names:
        (place / name).touch()
    wait_until(lambda: not list(place.iterdir()), 60, f"{', '.join(names)} to be carried out")


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
    stack.survives(said, lambda: order(stack.folder, *names))
