"""The notebook-like example runs as its user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.broker import ready
from tests.support.waiting import wait_until
from tiercel.examples.dataframes.orders import QUEUE, some_orders

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]


def test_orders_are_counted_in_sql_and_plotted(rabbitmq, tmp_path):
    broker = rabbitmq()
    plot = tmp_path / "orders.svg"
    done = subprocess.run(
        [sys.executable, "-m", "tiercel.examples.dataframes.orders", broker.url, str(plot)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    sold = sum(json.loads(order)["amount"] for order in some_orders(2_000))
    found = re.search(r"^(\d+) sold", done.stdout, re.MULTILINE)
    assert found is not None
    assert int(found[1]) == sold
    lines = ET.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3
    wait_until(lambda: ready(broker.url, QUEUE) == 0, 10)
