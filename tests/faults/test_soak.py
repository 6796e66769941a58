"""Random faults, one after the other, under a load that never stops: `make soak`.

Each run of the suite includes a minute of it.
"""

from __future__ import annotations

import random
import secrets
import time

import pytest

from tests.faults.catalogue import FAULTS, SOAK
from tests.faults.memory import Memory
from tests.faults.report import REPORT
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(3600)

_PAUSE_S = 5.0
_GROWTH = 0.1
# In a shorter soak, too few processes live for three minutes.
_ENOUGH_MINUTES = 10


@pytest.mark.slow
def test_soak(stack: Stack, pytestconfig: pytest.Config) -> None:
    minutes = pytestconfig.getoption("soak_minutes")
    seed = pytestconfig.getoption("soak_seed") or secrets.randbelow(2**32)
    print(f"soak of {minutes:g} minutes; to repeat it: --soak-seed={seed}")  # noqa: T201
    draw = random.Random(seed)
    drawn: list[str] = []

    def inject(share: float, names: list[str]) -> None:
        end = time.monotonic() + 60 * minutes * share
        while time.monotonic() < end:
            drawn.append(draw.choice(names))
            print(f"  {time.strftime('%H:%M:%S')} {drawn[-1]}")  # noqa: T201
            FAULTS[drawn[-1]](stack)
            time.sleep(_PAUSE_S)

    memory = Memory(stack)

    def faults() -> None:
        inject(*SOAK[0])
        # No process is measured in the minute in which it starts.
        stack.recovery(time.monotonic(), stack.rate, "the soak's first part")
        with memory:
            for part in SOAK[1:]:
                inject(*part)

    stack.survives(f"soak of {minutes:g} minutes, seed {seed}", faults, faults=lambda: len(drawn))
    REPORT.memory = memory.lines()
    if minutes >= _ENOUGH_MINUTES:
        assert not memory.not_shown(), "none of these lived for three minutes"
    assert [str(each) for each in memory.grown() if not each.within(_GROWTH)] == []
