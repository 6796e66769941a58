"""The running topology that the faults of one module share, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.report import REPORT
from tests.faults.stack import Stack
from tests.support.broker import restart_in_order
from tests.support.servers import Servers


def started(
    folders: pytest.TempPathFactory, servers: Servers, config: pytest.Config, master: str
) -> Stack:
    """A stack to be entered."""
    return Stack(
        folders.mktemp("effects"),
        master=master,
        servers=servers,
        rate=config.getoption("fault_rate"),
        burst=10_000 if config.getoption("slow") else 3_000,
    )


@pytest.fixture(scope="package")
def stack(
    tmp_path_factory: pytest.TempPathFactory, servers: Servers, pytestconfig: pytest.Config
) -> Iterator[Stack]:
    """One for the faults and the soak: most of the time goes into Spark's start."""
    with started(tmp_path_factory, servers, pytestconfig, "local[2]") as running:
        restart_in_order(running.rabbitmq)
        yield running


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, servers: Servers, pytestconfig: pytest.Config
) -> Iterator[Stack]:
    """With two executors, each a process."""
    with started(tmp_path_factory, servers, pytestconfig, "local-cluster[2,1,1024]") as running:
        restart_in_order(running.rabbitmq)
        yield running


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not REPORT.rows:
        return
    section = REPORT.section(config.getoption("servers") or "embedded")
    terminalreporter.write_sep("-", "faults")
    terminalreporter.write(section)
    if path := config.getoption("fault_report"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a") as file:
            file.write(section + "\n")
