"""The machine's clock jumps, by an hour and back again, for Spark and all of tiercel's processes.

Not for the servers: Redis' allocator does not start with a clock that is not the machine's. What a jump of its clock does to
the driver's judgement is in ``tests/unit/test_runs.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.install import install_missing
from tests.faults.stack import Stack
from tests.servers import Servers

pytestmark = [pytest.mark.timeout(900), pytest.mark.embedded]

_HOUR_S = 3600


class Clock:
    """The clock of the processes that are started with ``environment``; their monotonic clocks go on."""

    def __init__(self, file: Path) -> None:
        install_missing("faketime")
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Put it so far before the machine's own."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n")
        new.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def clocked(tmp_path_factory: pytest.TempPathFactory, servers: Servers, clock: Clock) -> Iterator[Stack]:
    before = set(Path("/dev/shm").glob("*faketime*"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        with Stack(tmp_path_factory.mktemp("effects"), master="local[2]", servers=servers, rate=100) as stack:
            yield stack
    # What processes that were killed leave behind.
    for left in set(Path("/dev/shm").glob("*faketime*")) - before:
        left.unlink(missing_ok=True)


def test_the_clock_jumps(clocked: Stack, clock: Clock) -> None:
    clocked.survives("clock: an hour ahead", lambda: clock.set(_HOUR_S))
    clocked.survives("clock: two hours back", lambda: clock.set(-_HOUR_S))
