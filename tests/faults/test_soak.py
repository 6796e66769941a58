"""Random faults, one after the other, under a load that never stops: `make soak`; a minute of it in each run of the suite."""

from __future__ import annotations

import random
import secrets
import time

import pytest

from tests.faults.catalogue import DRAWN, FAULTS
from tests.faults.memory import Memory
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(3600)

_PAUSE_S = 5.0
_GROWTH = 1.1


def test_soak(stack: Stack, pytestconfig: pytest.Config) -> None:
    minutes = pytestconfig.getoption("soak_minutes")
    seed = pytestconfig.getoption("soak_seed") or secrets.randbelow(2**32)
    print(f"soak of {minutes} minutes; to repeat it: --soak-seed={seed}")  # noqa: T201
    draw = random.Random(seed)
    memory = Memory(stack)

    def faults() -> None:
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            name = draw.choice(DRAWN)
            print(f"  {time.strftime('%H:%M:%S')} {name}")  # noqa: T201
            FAULTS[name](stack)
            time.sleep(_PAUSE_S)
            memory.look()

    stack.survives(f"soak of {minutes} minutes, seed {seed}", faults)
    for line in memory.lines():
        print(line)  # noqa: T201
    assert memory.growth() < _GROWTH or minutes < 5
