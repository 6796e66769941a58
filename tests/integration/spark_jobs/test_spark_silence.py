"""Spark's noise at the end of a run, when its threads and Python workers are cut off, is not shown
to users.
"""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
from tiercel.spark_jobs.spark.session import SparkUnit

spark = SparkUnit("silence", "local[1]", {})
log4j = spark.context._jvm.org.apache.logging.log4j
error = log4j.LogManager.getLogger("org.apache.spark.executor").error
error("before")
with spark.silenced():
    error("for a while")
error("in between")
spark.silence()
error("afterwards")
spark.stop()
"""


def test_spark_logs_errors_but_nothing_while_it_is_silenced():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    said = [
        line.split("spark", 1)[1].strip() for line in done.stderr.splitlines() if "ERROR" in line
    ]
    assert said == ["before", "in between"]
