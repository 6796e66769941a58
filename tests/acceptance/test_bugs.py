"""A user's own bug, found with only the log and ``tiercel errors``; and logging by bolts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.terminal import tiercel_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
HELPERS = """
import logging

log = logging.getLogger("orders.api")


def price(order):
    log.warning("asking for %s", order["order"], extra={"order": order["order"]})
    log.debug("in detail")
    return order["deep"]["price"]
"""
TOPOLOGY = """
import logging

import helpers
from tiercel import BasicBolt, QueueSpout, Reject, TopologyBuilder
from tiercel.queues.retry import NO_WAIT


class Enrich(BasicBolt):
    def execute(self, tup, collector):
        logging.info("from the root, task by task")
        if tup["order"] == 13:
            raise Reject("thirteen is no order")
        print("printed for", tup["order"])
        helpers.price({"order": tup["order"]})


def topology():
    builder = TopologyBuilder("orders")
    spout = QueueSpout("orders", "order long", delivery_limit=2, retry=NO_WAIT)
    builder.set_spout("orders", spout)
    builder.set_bolt("enrich", Enrich()).shuffle_grouping("orders")
    return builder.build()
"""


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(folder),
        "TIERCEL_LOG_LEVEL": "debug",
    }


def tiercel(folder: Path, *arguments: str) -> str:
    """Return the output of a command that must succeed."""
    finished = subprocess.run(
        [sys.executable, "-m", "tiercel", *arguments],
        cwd=folder,
        env={**environment(folder), "TIERCEL_LOG_LEVEL": "warning", "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_bug_in_a_helper_is_found_from_the_log_and_the_errors_alone(tmp_path):
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "orders.py").write_text(TOPOLOGY)
    (tmp_path / "bodies").write_text('{"order": 1}\n{"order": 2}\n{"order": 13}\n{"ordr": 3}\n')
    log = tmp_path / "log"

    def records(**wanted: object) -> list[dict[str, object]]:
        found = [json.loads(line) for line in log.read_text().splitlines() if line]
        return [one for one in found if all(one.get(key) == wanted[key] for key in wanted)]

    with tiercel_run(
        "orders:topology", folder=tmp_path, log=log, environment=environment(tmp_path)
    ) as process:
        wait_until(lambda: "run_started" in log.read_text(), 300, "the topology to run")
        tiercel(tmp_path, "publish", "orders", "bodies")
        letters = wait_until(
            lambda: (
                (said := tiercel(tmp_path, "dead-letters", "show", "orders"))
                and said.count("KeyError") >= 2
                and said
            ),
            120,
            "four dead letters",
        )
        assert "rejected: enrich[2]: Reject: thirteen is no order" in letters
        assert "the body has no 'order', which must be a long; it has ordr" in letters
        assert "enrich[2]: KeyError: 'deep' (helpers.py:10)" in letters
        told = wait_until(
            lambda: (
                (said := tiercel(tmp_path, "errors", "--traceback")) and "6 times" in said and said
            ),
            30,
            "the count of the error",
        )
        assert told.startswith("enrich: KeyError: 'deep' (helpers.py:10)\n6 times, first at ")
        assert 'return order["deep"]["price"]' in told
        assert "Reject" not in told
        process.terminate()
        assert process.wait(60) == 0

    [first] = records(event="bolt_raised")
    assert first["level"] == "warning"
    assert (first["bolt"], first["task"]) == ("enrich", 2)
    assert "helpers.price(" in first["message"]
    assert "execution.py" not in first["message"]
    asked = records(logger="orders.api", level="warning")
    assert {(one["bolt"], one["task"], one["component"]) for one in asked} == {
        ("enrich", 2, "driver")
    }
    assert {one["order"] for one in asked} == {1, 2}
    assert records(logger="orders.api", level="debug", message="in detail")
    assert records(logger="root", level="info", message="from the root, task by task")
    assert records(event="spark_output", message="printed for 1")
