"""Spark's Python processes are forked from one that has imported everything, pyspark
from its folder.
"""

import subprocess
import sys
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[3]
SPARK = """
import sys
from pathlib import Path

from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.workers.config import use_this_python_for_spark

use_this_python_for_spark(Path.cwd())
found = sys.argv[1]


def where(_):
    import pyspark
    main = sys.modules["__main__"]
    Path(found).write_text(f"{pyspark.__file__} {main.__spec__.name}")


with SparkUnit("where", "local[1]", {}) as spark:
    spark.context.parallelize([0], 1).foreach(where)
"""


def test_a_python_worker_of_spark_has_everything_from_the_process_that_forked_it(tmp_path):
    found = tmp_path / "found"
    command = [sys.executable, "-c", SPARK, str(found)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    assert found.read_text() == f"{pyspark.__file__} tiercel.spark_jobs.spark.python_daemon"
