"""Shared by all clusters of this process, because they take seconds to start: Spark, and
a private Redis.
"""

from __future__ import annotations

import atexit
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from tiercel.compose.errors import ServiceError
from tiercel.compose.redis_server import EmbeddedRedis
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.workers.testing.errors import LocalClusterError

_CORES = 2


@cache
def shared_redis_url() -> str:
    """A Redis of our own, which ends with this process. Raises LocalClusterError."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    try:
        return until_exit.enter_context(EmbeddedRedis()).url
    except ServiceError as error:
        raise LocalClusterError(
            f"{error}; or name a server: LocalCluster(…, redis_url=…)"
        ) from error


@cache
def shared_spark() -> SparkUnit:
    """A context on this machine, or the one that this process has already.

    Raises SparkUnavailableError.
    """
    spark = SparkUnit("tiercel-test-kit", f"local[{_CORES}]", {})
    spark.use_python(sys.executable, [str(Path(__file__).parents[3])])
    atexit.register(_end, spark)
    return spark


def _end(spark: SparkUnit) -> None:
    spark.silence()
    spark.stop()
