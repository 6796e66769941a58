"""The Spark context that a topology's tasks run in, and what must hold before one can start."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from spark_jobs.class_archive import reading_options
from spark_jobs.errors import SparkUnavailableError
from spark_jobs.session import _LOCAL, _LOG4J, check_versions
from spark_jobs.shipping import pack_code

ATTEMPTS = 1_000_000
"""Spark adds the failures of a task up over the life of its job, and a job of months must not end at the tenth."""

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""In local mode the JVM does nothing but wait: no optimizing compiler, no threads of a collector."""

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.task.maxFailures": str(ATTEMPTS),
    # Failures are those of tuples and processes, not of machines; counted over months they would exclude all executors.
    "spark.excludeOnFailure.enabled": "false",
    # A run has as many tasks as there are slots: executors that come and go are the operator's affair.
    "spark.dynamicAllocation.enabled": "false",
    "spark.locality.wait": "0",
}


class SparkUnit:
    """One Spark application: a context, and the runs it hosts one after the other."""

    def __init__(self, application: str, master: str, options: Mapping[str, str]) -> None:
        """Start Spark on ``master`` (its syntax: ``local[2]``, ``spark://host:7077``).

        ``options`` go over the defaults. Speculation is refused: two attempts at one task that run at once would take
        each other's inbox. Raises SparkUnavailableError with what to do.
        """
        check_versions()
        settings = {**_DEFAULTS, **(_local() if master.startswith("local") else {}), **options}
        if settings.get("spark.speculation", "false").lower() == "true":
            raise SparkUnavailableError("tiercel does not run with spark.speculation: take it out of the Spark options")
        conf = SparkConf().setMaster(with_retries(master)).setAppName(application).setAll(list(settings.items()))
        try:
            self.context = SparkContext.getOrCreate(conf)
        except (PySparkException, OSError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise SparkUnavailableError(f"Spark does not start on {master!r}: {first_line}") from error
        self._scratch = tempfile.TemporaryDirectory(prefix="tiercel-", ignore_cleanup_errors=True)

    @property
    def slots(self) -> int:
        """How many Spark tasks can run at once."""
        return int(self.context.defaultParallelism)

    def ship(self, module: str | None, master: str) -> None:
        """Send the folder of ``module`` to the executors of a cluster; None: the code is there."""
        if module is None or re.match(r"local(\[|$)", master):
            return
        archive = Path(self._scratch.name) / "tiercel.zip"
        pack_code(module, archive)
        self.context.addPyFile(str(archive))

    def silence(self) -> None:
        """Throw away what Spark's JVM writes to stderr from now on.

        At its end, Python workers that are cut off in the middle print stack traces that mean nothing.
        """
        java: Any = self.context._jvm.java  # type: ignore[union-attr] # noqa: SLF001 - the only way to the JVM
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))

    def stop(self) -> None:
        """End the context and its JVM's work."""
        self.context.stop()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _local() -> dict[str, str]:
    java = " ".join([f"-Dlog4j2.configurationFile={_LOG4J}", _JAVA, *reading_options()])
    return {**_LOCAL, "spark.driver.extraJavaOptions": java}


def with_retries(master: str) -> str:
    """``local[N]`` with as many attempts as on a cluster: local mode alone gives a task one.

    >>> with_retries("local[2]"), with_retries("local"), with_retries("spark://host:7077")
    ('local[2,1000000]', 'local[1,1000000]', 'spark://host:7077')
    """
    if master == "local":
        return f"local[1,{ATTEMPTS}]"
    match = re.fullmatch(r"local\[(\d+|\*)\]", master)
    return f"local[{match[1]},{ATTEMPTS}]" if match else master
