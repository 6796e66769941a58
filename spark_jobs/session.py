"""The Spark session that tiercel's query runs in, and what must hold before one can start."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.class_archive import archive_path, end_java, practise, reading_options, writing_options
from spark_jobs.errors import SparkUnavailableError
from spark_jobs.job import Job
from spark_jobs.query import RunningQuery, on_each_worker, start_query

log = logging.getLogger(__name__)

_OLDEST_SPARK = (4, 1)
"""``repartitionById`` came with 4.1."""
_OLDEST_JAVA = 17

ATTEMPTS = 10
"""How often Spark tries a task before the run ends."""

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""The JVM plans micro-batches and passes bytes on. The optimizing compiler, and a collector with threads of its own, would take
more from the Python workers than they ever give back: see docs/decisions/a-small-jvm.md."""

_DEFAULTS = {
    "spark.ui.enabled": "false",
    # Its page has no login: where it is wanted, it shows and changes nothing.
    "spark.ui.killEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Some 30 ms off every Python stage, against TCP on loopback.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    # A task that kills its Python process is tried again until the tuples that do it are found: two deaths each.
    "spark.task.maxFailures": str(ATTEMPTS),
    # A task that is tried again and does other work is the ledger's business, which fails the roots concerned. Spark compares
    # its rows too, and would end the run.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    # Tasks go where a core is free: what they read is in Redis, not on an executor's disk.
    "spark.locality.wait": "0",
    # What a lost executor had written is computed again from Redis in less than the 5 s after which Spark would ask it again.
    "spark.shuffle.io.retryWait": "1s",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
}

_LOG4J = resources.files("spark_jobs").joinpath("log4j2.properties")
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Where all of Spark is on one machine: no port that another machine could reach."""

_SECRET = "spark.authenticate.secret"  # noqa: S105 - a setting's name
# What Spark broadcasts holds passwords and the key of the seals, and its ports give broadcasts to every local user who asks.
_AUTHENTICATED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # Version 1 and AES/CTR are Spark's defaults, for the sake of older ones: weaker keys, and bytes that can be changed unseen.
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
}


class SparkUnit:
    """One Spark application of ours: a session, and the queries it runs one after the other."""

    def __init__(self, application: str, master: str, options: Mapping[str, str]) -> None:
        """Start Spark on ``master`` (its syntax: ``local[2]``, ``spark://host:7077``); ``options`` go over the defaults.

        In local mode a failed task is tried again, as on a cluster. Speculation is refused: two attempts at one task
        that run at once would both write to the outside. Raises SparkUnavailableError with what to do.
        """
        check_versions()
        settings = {**_DEFAULTS, **(_local(reading_options()) if master.startswith("local") else {}), **options}
        if settings.get("spark.speculation", "false").lower() == "true":
            raise SparkUnavailableError("tiercel does not run with spark.speculation: take it out of the Spark options")
        settings |= {"spark.master": with_retries(master), "spark.app.name": application}
        try:
            self._session = _started(settings)
        except (PySparkException, OSError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise SparkUnavailableError(f"Spark does not start on {master!r}: {first_line}") from error
        if self._session.sparkContext.getConf().get("spark.authenticate", "false") != "true":
            log.warning(
                "Spark at %s asks for no secret: every process that reaches its ports can fetch the passwords of RabbitMQ and"
                " Redis; set spark.authenticate as docs/deploy.md says",
                master,
                extra={"event": "spark_open"},
            )

    @property
    def cores(self) -> int:
        """How many tasks can run at once."""
        return int(self._session.sparkContext.defaultParallelism)

    def use_python(self, executable: str, folders: Sequence[str]) -> None:
        """Queries that start from now on run in this Python, which can import what lies in ``folders``.

        Without it that is said by the environment, see ``workers.config``. A session that runs already can only be told here.
        """
        context = self._session.sparkContext
        context.pythonExec = executable
        context.environment["PYTHONPATH"] = os.pathsep.join(folders)

    def ship(self, archive: Path) -> None:
        """Have the Python workers of all executors import from this ``.zip`` too; it must stay until ``stop``."""
        self._session.sparkContext.addPyFile(str(archive))

    def start(self, job: Job, checkpoint: str) -> RunningQuery:
        """Start the query of one run; ``checkpoint`` is a scratch folder that the driver can write.

        Returns when the Python workers are ready: what the first micro-batch would wait for, its tuples need not.
        """
        # Each of the two waits for Python processes to import for seconds, on one core: together they have both.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="python workers") as beside:
            prepared = beside.submit(self.on_each_worker, job.prepare)
            query = RunningQuery(start_query(self._session, job, checkpoint))
            try:
                prepared.result()
            except BaseException:
                query.finish(0)
                raise
        return query

    def keep_warm(self, job: Job) -> None:
        """Use the Python workers, so that Spark does not end them: the next tuple would wait seconds for new ones."""
        self.on_each_worker(job.prepare)

    def on_each_worker(self, call: Callable[[], None]) -> None:
        """Have the Python workers import everything and call this, one a core."""
        on_each_worker(self._session, call, self.cores)

    def silence(self) -> None:
        """Throw away what Spark's JVM writes to stderr from now on.

        At its end, threads and Python workers that are cut off in the middle print stack traces that mean nothing.
        """
        java: Any = self._java
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """``silence`` for a while: a query that is stopped between two micro-batches may end with such a trace too."""
        stderr: Any = self._java.lang.System.err
        self.silence()
        try:
            yield
        finally:
            self._java.lang.System.setErr(stderr)

    @property
    def _java(self) -> Any:
        """The root of the JVM's packages."""
        return self._session.sparkContext._jvm.java  # type: ignore[union-attr] # noqa: SLF001 - the only way to the JVM

    def stop(self) -> None:
        """End the session and its JVM's work."""
        self._session.stop()


def _local(java_options: Sequence[str]) -> dict[str, str]:
    java = " ".join([f"-Dlog4j2.configurationFile={_LOG4J}", _JAVA, *java_options])
    return {**_LOCAL, **_AUTHENTICATED, "spark.driver.extraJavaOptions": java}


def _started(settings: Mapping[str, str]) -> SparkSession:
    """Return the session. The settings are on the JVM's command line, which every user can read, all but the secret.

    Spark draws the secret itself for ``local[N]``, YARN and Kubernetes. For ``local-cluster`` it is drawn here: one run, one
    secret. The executors of a cluster have it in their environment, which Spark's worker gives them.
    """
    shown = {key: value for key, value in settings.items() if key != _SECRET}
    secret = settings.get(_SECRET)
    if secret is None and settings["spark.master"].startswith("local-cluster"):
        secret = secrets.token_urlsafe(32)
    if secret is not None:
        # pyspark puts all settings that it knows when it starts the JVM on the command line, and later ones nowhere.
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(shown.items())))  # noqa: SLF001
        java: Any = SparkContext._jvm  # noqa: SLF001 - the only way to the JVM
        java.java.lang.System.setProperty(_SECRET, secret)
    builder = SparkSession.builder
    for key, value in shown.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def make_class_archive() -> Path:
    """Have Spark's JVM start faster from now on, in local mode; returns the file that was written.

    Starts Spark, and ends the JVM of this process. Raises SparkUnavailableError.
    """
    with (
        writing_options() as java_options,
        tempfile.TemporaryDirectory(prefix="tiercel-", ignore_cleanup_errors=True) as scratch,
    ):
        spark = SparkUnit("tiercel prepare", "local[2]", _local(java_options))
        try:
            # First: what copies a Python process's last words keeps the stderr that there was when the process began.
            spark.silence()
            practise(spark._session, scratch).stop()  # noqa: SLF001
        finally:
            spark.stop()
            end_java()
    return archive_path()


def with_retries(master: str) -> str:
    """``local[N]`` as ``local[N,10]``: local mode alone gives a task one attempt only.

    >>> with_retries("local[2]"), with_retries("local"), with_retries("spark://host:7077")
    ('local[2,10]', 'local[1,10]', 'spark://host:7077')
    """
    if master == "local":
        return f"local[1,{ATTEMPTS}]"
    match = re.fullmatch(r"local\[(\d+|\*)\]", master)
    return f"local[{match[1]},{ATTEMPTS}]" if match else master


def check_versions() -> None:
    """Raise SparkUnavailableError if PySpark or Java is missing or too old."""
    found = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if found < _OLDEST_SPARK:
        raise SparkUnavailableError(f"PySpark {pyspark.__version__} is too old: install pyspark 4.1 or newer")
    java = shutil.which("java")
    if java is None:
        raise SparkUnavailableError(f"Spark needs Java {_OLDEST_JAVA} or newer: apt-get install openjdk-17-jre-headless")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 - found on PATH
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        shown = version[1] if version else "of unknown version"
        raise SparkUnavailableError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, {java} is {shown}: apt-get install openjdk-17-jre-headless"
        )
