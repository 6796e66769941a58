"""The running topology that the faults of one module share, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.report import REPORT
from tests.faults.stack import Stack
from tests.servers import Servers


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, servers: Servers) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("effects"), master="local[2]", servers=servers) as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORT.rows:
        terminalreporter.write_sep("-", "faults survived")
        for line in REPORT.lines():
            terminalreporter.write_line(line)
