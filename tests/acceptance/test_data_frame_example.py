"""The notebook-like example runs with the user's command, without a Redis client installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.broker import ready
from tests.support.waiting import wait_until
from tests.support.without import Without
from tiercel.examples.dataframes.orders import QUEUE, some_orders

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]


def test_orders_are_counted_in_sql_and_plotted(rabbitmq, tmp_path):
    broker = rabbitmq()
    plot = tmp_path / "orders.svg"
    without_redis = Without(tmp_path, "redis", "hiredis")
    done = subprocess.run(
        [sys.executable, "-m", "tiercel.examples.dataframes.orders", broker.url, str(plot)],
        env={**without_redis.environment, "PYSPARK_PYTHON": sys.executable},
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
    ran = "\n".join(without_redis.command_lines)
    for process in ("examples.dataframes.orders", "streaming_source_runner", "pyspark.daemon"):
        assert process in ran


def test_an_import_of_redis_fails_there(tmp_path):
    without_redis = Without(tmp_path, "redis", "hiredis")
    done = subprocess.run(
        [sys.executable, "-c", "import tiercel.dataframe, redis"],
        env=without_redis.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "redis is not installed here" in done.stderr
