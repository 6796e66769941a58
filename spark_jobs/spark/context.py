"""The Spark context that a topology's tasks run in, and what must hold before one can start."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Self

from pyspark.errors import PySparkException

from spark_jobs.errors import SparkUnavailableError
from spark_jobs.shipping import pack_code
from spark_jobs.spark.archive import reading_options
from spark_jobs.spark.secrecy import AUTHENTICATED, started, warn_if_open
from spark_jobs.spark.versions import check_versions

ATTEMPTS = 1_000_000
"""Spark adds the failures of a task up over the life of its job, and a job of months must not end at the tenth."""

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""In local mode the JVM does nothing but wait: no optimizing compiler, no threads of a collector."""

_DEFAULTS = {
    "spark.ui.enabled": "false",
    # Its page has no login: where it is wanted, it shows and changes nothing.
    "spark.ui.killEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.task.maxFailures": str(ATTEMPTS),
    # Failures are those of tuples and processes, not of machines; counted over months they would exclude all executors.
    "spark.excludeOnFailure.enabled": "false",
    # A run has as many tasks as there are slots: executors that come and go are the operator's affair.
    "spark.dynamicAllocation.enabled": "false",
    "spark.locality.wait": "0",
}

_LOG4J = resources.files("spark_jobs").joinpath("log4j2.properties")
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Where all of Spark is one process: no port that another machine could reach."""


class SparkUnit:
    """One Spark application: a context, and the runs it hosts one after the other."""

    def __init__(self, application: str, master: str, options: Mapping[str, str]) -> None:
        """Start Spark on ``master`` (its syntax: ``local[2]``, ``spark://host:7077``).

        ``options`` go over the defaults. Speculation is refused: two attempts at one task that run at once would take
        each other's inbox. Raises SparkUnavailableError with what to do.
        """
        check_versions()
        settings = {**_DEFAULTS, **(local_settings(reading_options()) if master.startswith("local") else {}), **options}
        if settings.get("spark.speculation", "false").lower() == "true":
            raise SparkUnavailableError("tiercel does not run with spark.speculation: take it out of the Spark options")
        settings |= {"spark.master": with_retries(master), "spark.app.name": application}
        try:
            self.context = started(settings)
        except (PySparkException, OSError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise SparkUnavailableError(f"Spark does not start on {master!r}: {first_line}") from error
        warn_if_open(self.context, master)
        self._scratch = tempfile.TemporaryDirectory(prefix="tiercel-", ignore_cleanup_errors=True)

    def use_python(self, executable: str, folders: Sequence[str]) -> None:
        """Runs that start from now on use this Python, which can import what lies in ``folders``.

        Without it the environment says that. A context that is there already can only be told here.
        """
        self.context.pythonExec = executable
        self.context.environment["PYTHONPATH"] = os.pathsep.join(folders)

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """``silence`` for a while: a run that is cancelled may end with such a trace too."""
        stderr: Any = self._java.lang.System.err
        self.silence()
        try:
            yield
        finally:
            self._java.lang.System.setErr(stderr)

    @property
    def _java(self) -> Any:
        """The root of the JVM's packages."""
        return self.context._jvm.java  # type: ignore[union-attr] # noqa: SLF001 - the only way to the JVM

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
        java = self._java
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))

    def stop(self) -> None:
        """End the context and its JVM's work."""
        self.context.stop()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def local_settings(java_options: Sequence[str]) -> dict[str, str]:
    """Where all of Spark is one process."""
    java = " ".join([f"-Dlog4j2.configurationFile={_LOG4J}", _JAVA, *java_options])
    return {**_LOCAL, **AUTHENTICATED, "spark.driver.extraJavaOptions": java}


def with_retries(master: str) -> str:
    """``local[N]`` with as many attempts as on a cluster: local mode alone gives a task one.

    >>> with_retries("local[2]"), with_retries("local"), with_retries("spark://host:7077")
    ('local[2,1000000]', 'local[1,1000000]', 'spark://host:7077')
    """
    if master == "local":
        return f"local[1,{ATTEMPTS}]"
    match = re.fullmatch(r"local\[(\d+|\*)\]", master)
    return f"local[{match[1]},{ATTEMPTS}]" if match else master
