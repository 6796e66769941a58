"""What happens when bolts misbehave."""

from __future__ import annotations

import threading

import pytest

from tests.faults.numbered import Order
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(400)


def test_one_tuple_in_a_hundred_raises(stack: Stack) -> None:
    def fault() -> None:
        place = Order.place(stack.folder)
        place.mkdir(exist_ok=True)
        (place / Order.RAISE).touch()
        threading.Event().wait(10)
        (place / Order.RAISE).unlink()

    shown = stack.survives("bolt: 1 % of the tuples raise, for 10 s", fault)
    assert shown.dead_lettered == 0
