"""Makes the class archive.

The JVM writes it at the end of a run that practised what tiercel does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from tiercel.spark_jobs.spark.archive import archive_path, writing_options
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.spark.settings import one_machine

_PATIENCE_S = 600.0


def practise(context: SparkContext) -> None:
    """Do what a run does: a job whose tasks are in Python processes."""
    context.setJobGroup("practice", "tiercel practises the start of a run")
    context.parallelize(range(2), 2).mapPartitionsWithIndex(_same).collect()


def _same(number: int, _: Iterable[int]) -> Iterator[int]:
    yield number


def end_java() -> None:
    """End the JVM of this process and wait for it. No session can start here any more."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - the only way to the JVM's process
    if gateway is None:
        return
    gateway.shutdown()
    # It ends when its standard input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=_PATIENCE_S)


def make_class_archive() -> Path:
    """Have Spark's JVM start faster from now on, in local mode; returns the file that was written.

    Starts Spark, and ends the JVM of this process. Raises SparkUnavailableError.
    """
    with writing_options() as java_options:
        spark = SparkUnit("tiercel prepare", "local[2]", one_machine(java_options))
        try:
            # First: what copies a Python process's last words keeps the stderr that there was when
            # the process began.
            spark.silence()
            practise(spark.context)
        finally:
            spark.stop()
            end_java()
    return archive_path()
