"""Local Spark after its processes were stopped for longer than Spark's network timeout."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal, time

from tiercel.spark_jobs.spark.session import SparkUnit

timeouts = {
    "spark.network.timeout": "3s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "500ms",
}
with SparkUnit("sleeper", "local[1]", timeouts) as spark:
    process = spark._process.pid
    os.kill(process, signal.SIGSTOP)
    time.sleep(6)
    os.kill(process, signal.SIGCONT)
    time.sleep(3)
    print(spark.context.range(10).sum())
    spark.silence()
"""


def test_local_spark_goes_on_without_errors_after_its_jvm_was_stopped():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert [line for line in done.stderr.splitlines() if "ERROR" in line] == []
    assert done.stdout.split() == ["45"]
