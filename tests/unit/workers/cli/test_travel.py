"""``tiercel run`` and ``tiercel driver`` refuse a topology that cannot be shipped before anything
starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
TOPOLOGY = """
import threading

from tiercel import BasicBolt, QueueSpout, TopologyBuilder


class Enrich(BasicBolt):
    def __init__(self):
        self.lock = threading.Lock()

    def execute(self, tup, collector):
        pass


def topology():
    builder = TopologyBuilder("orders")
    builder.set_spout("orders", QueueSpout("orders", "body string"))
    builder.set_bolt("enrich", Enrich()).shuffle_grouping("orders")
    return builder.build()
"""


@pytest.mark.parametrize("command", [["run"], ["driver", "--redis", "redis://127.0.0.1:1"]])
def test_a_bolt_that_cannot_be_pickled_is_one_line_and_exit_code_2(tmp_path, command):
    (tmp_path / "orders.py").write_text(TOPOLOGY)
    environment = {name: value for name, value in os.environ.items() if "TIERCEL" not in name}
    finished = subprocess.run(
        [sys.executable, "-m", "tiercel", command[0], "orders:topology", *command[1:]],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    [line] = finished.stderr.splitlines()
    assert line.startswith(
        "tiercel: bolt 'enrich' cannot travel to Spark, because of its attribute 'lock': TypeError"
    )
    assert (finished.returncode, finished.stdout) == (2, "")
