"""The running topology shared by the faults of one module, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.report import REPORT, Shown
from tests.faults.stack import Stack
from tests.support.broker import restart_in_order
from tests.support.servers import Servers


def started(
    folders: pytest.TempPathFactory, servers: Servers, config: pytest.Config, master: str
) -> Stack:
    """Return a stack to be entered."""
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
    """One stack for the faults and the soak, because Spark's start takes most of the time."""
    with started(tmp_path_factory, servers, pytestconfig, "local[2]") as running:
        restart_in_order(running.rabbitmq)
        yield running


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, servers: Servers, pytestconfig: pytest.Config
) -> Iterator[Stack]:
    """A stack with two executors, each a process."""
    with started(tmp_path_factory, servers, pytestconfig, "local-cluster[2,1,1024]") as running:
        restart_in_order(running.rabbitmq)
        yield running


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send this worker process's table to the process that prints it."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["faults"] = {
            "rows": [asdict(row) for row in REPORT.rows],
            "rate": REPORT.rate,
            "memory": REPORT.memory,
        }


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the table of a worker process that has ended; a crashed one has left none."""
    if found := getattr(node, "workeroutput", {}).get("faults"):
        REPORT.rows += [Shown(**row) for row in found["rows"]]
        REPORT.rate = REPORT.rate or found["rate"]
        REPORT.memory += found["memory"]


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
