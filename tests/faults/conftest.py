"""The running topology that the faults of one module share, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.report import REPORT
from tests.faults.stack import Stack
from tests.servers import Servers


@pytest.fixture(scope="module")
def master() -> str:
    """Where Spark runs."""
    return "local[2]"


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, servers: Servers, master: str, pytestconfig: pytest.Config
) -> Iterator[Stack]:
    REPORT.rate = pytestconfig.getoption("fault_rate")
    with Stack(tmp_path_factory.mktemp("effects"), master=master, servers=servers, rate=REPORT.rate) as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not REPORT.rows:
        return
    section = REPORT.section(config.getoption("servers") or "embedded")
    terminalreporter.write_sep("-", "faults")
    terminalreporter.write(section)
    if path := config.getoption("fault_report"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a") as file:
            file.write(section + "\n")
