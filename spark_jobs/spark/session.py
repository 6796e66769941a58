"""The Spark context that a topology's tasks run in, the versions that it needs, and the file with
Spark's classes that its JVM starts faster with.

A JVM that maps the file of classes starts in half the CPU time. The JVM writes it at the end of a
run that practised what tiercel does. See docs/decisions/a-class-archive.md.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from tiercel.spark_jobs.errors import SparkEndedError, SparkUnavailableError
from tiercel.spark_jobs.spark.executors import (
    FIRST_STEADY_S,
    STEADY_S,
    Asking,
    Readiness,
    steady_slots,
    this_machine,
)
from tiercel.spark_jobs.spark.settings import SECRET, is_local, one_machine, quoted, settings_of
from tiercel.spark_jobs.spark.shipping import pack_code

# An archive that does not fit, such as after an update of Java, is passed over. That needs no
# words on stdout.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_OLDEST_SPARK = (4, 1)
_OLDEST_JAVA = 17
log = logging.getLogger(__name__)

_ARCHIVE = "tiercel.zip"
_LOOK_S = 0.1
_HELD_WITHIN_S = 5.0
_ENDS_WITHIN_S = 1.0
_FIRST_HOLD_S = 2.0
_LONGEST_HOLD_S = 30.0


class SparkUnit:
    """One Spark application: a context, and the runs it hosts one after the other."""

    def __init__(self, application: str, master: str, options: Mapping[str, str]) -> None:
        """Start Spark on ``master`` (its syntax: ``local[2]``, ``spark://host:7077``).

        ``options`` go over the defaults. Raises SparkUnavailableError with what to do.
        """
        check_versions()
        self._local = is_local(master)
        settings = settings_of(application, master, options, reading_options())
        try:
            self.context = _started(settings)
        except (PySparkException, OSError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise SparkUnavailableError(
                f"Spark does not start on {master!r}: {first_line}"
            ) from error
        self._stack = ExitStack()
        self._steady_s = FIRST_STEADY_S
        gateway: Any = SparkContext._gateway  # noqa: SLF001 - the only way to the JVM's process
        # None: it is not this process that started it.
        self._process: subprocess.Popen[bytes] | None = gateway.proc
        # Set when executors that cannot start Python need not be kept from tasks any more.
        self._unfit_held = threading.Event()
        if self.context.getConf().get("spark.authenticate", "false") != "true":
            log.warning(
                "Spark at %s asks for no secret: every process that reaches its ports can "
                "fetch the passwords of RabbitMQ and Redis; set spark.authenticate as "
                "docs/deploy.md says",
                master,
                extra={"event": "spark_open"},
            )

    def use_python(self, executable: str, folders: Sequence[str]) -> None:
        """Runs that start from now on use this Python, which can import what lies in ``folders``.

        Without it the environment says that. A context that is there already can only be told here.
        """
        self.context.pythonExec = executable
        self.context.environment["PYTHONPATH"] = os.pathsep.join(folders)

    def check_alive(self) -> None:
        """Raise SparkEndedError if the JVM has ended, or does so within a second.

        Call it after a failure: a connection breaks a moment before the process is gone.
        """
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_WITHIN_S)
        if self._has_ended:
            raise SparkEndedError(
                "Spark's JVM has ended: was it killed, because the machine was short of memory? "
                "The driver ends too, to be started again; messages wait meanwhile"
            )

    @property
    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """``silence`` for a while: a run that is cancelled may end with such a trace too."""
        if self._has_ended:
            yield
            return
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

    def ready(self, wanted: int) -> Readiness:
        """Return the Spark tasks that can run at once, where none runs.

        On a cluster it waits for executors until there are ``wanted`` slots, for seconds, and asks
        each whether Python starts there. Executors on which it does not are kept busy until it
        does, so that Spark gives them no tasks.
        """
        python = str(self.context.pythonExec)
        if self._local:
            return this_machine(python, int(self.context.defaultParallelism))
        slots = steady_slots(self._free, wanted, self._steady_s)
        self._steady_s = STEADY_S
        if not self._free():
            return Readiness(slots=slots)
        asking = Asking(self.context)
        found = asking.answers(slots)
        if found.slots and found.unfit:
            self._unfit_held.set()  # the new thread asks those executors too
            self._unfit_held = threading.Event()
            threading.Thread(
                target=self._hold_unfit,
                args=[asking, slots, self._unfit_held],
                name="unfit-executors",
                daemon=True,
            ).start()
            end = time.monotonic() + _HELD_WITHIN_S
            while self._free() != found.slots and time.monotonic() < end:
                time.sleep(_LOOK_S)
        return found

    def _hold_unfit(self, asking: Asking, slots: int, over: threading.Event) -> None:
        """Keep executors busy that cannot run bolts, and ask them again, after longer and longer.

        The first time all ``slots`` are asked; the slots of sound executors are free again at once.
        """
        hold_s = _FIRST_HOLD_S
        with suppress(Exception):  # Spark ends
            while not over.is_set():
                found = asking.answers(slots, hold_s)
                if not found.unfit:
                    return
                slots = self._freed()
                if not slots:  # those executors are gone
                    return
                hold_s = min(_LONGEST_HOLD_S, 2 * hold_s)
                log.error(
                    "%s; it is asked again after %.0f s, the others work", found.trouble, hold_s,
                    extra={"event": "executor_unfit"},
                )  # fmt: skip

    def _freed(self) -> int:
        """Return the free slots, once Spark knows that tasks that have just ended are over."""
        end = time.monotonic() + _HELD_WITHIN_S
        while not (slots := self._free()) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return slots

    @property
    def free(self) -> int:
        """Return the number of Spark tasks that could run beside the running ones.

        In local mode none is ever lost, and 0 is returned.
        """
        return 0 if self._local else self._free()

    def _free(self) -> int:
        """Return the free slots of the executors that are there.

        ``defaultParallelism`` is 2 where there are none, or what is set.

        Spark lists an executor for minutes that has vanished. A task of a run that is over
        counts for as long as its executor has not said that it has ended: one that does not
        answer has no free slot.
        """
        jvm: Any = self.context._jsc.sc()  # noqa: SLF001 - the only way to Spark's own list
        executors = jvm.statusStore().executorList(True)  # live executors only
        found = executors.iterator()
        slots = 0
        while found.hasNext():
            executor = found.next()
            slots += max(0, int(executor.maxTasks()) - int(executor.activeTasks()))
        return slots

    def ship(self, module: str | None, master: str) -> None:
        """Send the folder of ``module`` to the executors of a cluster; None: the code is there."""
        if module is None or is_local(master):
            return
        scratch = tempfile.TemporaryDirectory(prefix="tiercel-", ignore_cleanup_errors=True)
        archive = Path(self._stack.enter_context(scratch)) / _ARCHIVE
        pack_code(module, archive)
        self.context.addPyFile(str(archive))
        # Workers find it by themselves. The process that forks them does not: it starts in the
        # executor's folder, where Spark puts the archive first.
        others = self.context.environment.get("PYTHONPATH")
        self.context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_ARCHIVE, others]))

    def silence(self) -> None:
        """Throw away what Spark's JVM writes to stderr from now on.

        At its end, Python workers that are cut off in the middle print stack traces
        that mean nothing.
        """
        if self._has_ended:
            return
        java = self._java
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))

    def stop(self) -> None:
        """End the context and its JVM's work."""
        self._unfit_held.set()
        with self._stack:
            if not self._has_ended:
                self.context.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _started(settings: Mapping[str, str]) -> SparkContext:
    """Return the context.

    The settings are on the JVM's command line, which every user can read, all but the secret.

    Spark draws the secret itself for ``local[N]``, YARN and Kubernetes. For ``local-cluster`` it is
    drawn here: one application, one secret. Master, workers and driver of a standalone cluster read
    it from a file (``--properties-file``); executors have it in their environment, which Spark's
    worker gives them.
    """
    shown = {key: value for key, value in settings.items() if key != SECRET}
    secret = settings.get(SECRET)
    if secret is None and settings["spark.master"].startswith("local-cluster"):
        secret = secrets.token_urlsafe(32)
    if secret is not None:
        # pyspark puts all settings that it knows when it starts the JVM on the command line, and
        # later ones nowhere.
        known = SparkConf(loadDefaults=False).setAll(list(shown.items()))
        SparkContext._ensure_initialized(conf=known)  # noqa: SLF001
        java: Any = SparkContext._jvm  # noqa: SLF001 - the only way to the JVM
        java.java.lang.System.setProperty(SECRET, secret)
    return SparkContext.getOrCreate(SparkConf().setAll(list(shown.items())))


def check_versions() -> None:
    """Raise SparkUnavailableError if PySpark or Java is missing or too old."""
    found = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if found < _OLDEST_SPARK:
        raise SparkUnavailableError(
            f"PySpark {pyspark.__version__} is too old: install pyspark 4.1 or newer"
        )
    java = shutil.which("java")
    if java is None:
        raise SparkUnavailableError(
            f"Spark needs Java {_OLDEST_JAVA} or newer: apt-get install openjdk-17-jre-headless"
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 - found on PATH
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        shown = version[1] if version else "of unknown version"
        raise SparkUnavailableError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, {java} is {shown}: apt-get install "
            "openjdk-17-jre-headless"
        )


def archive_path() -> Path:
    """Beside Spark, whose classes they are."""
    return Path(pyspark.__file__).parent / "tiercel.jsa"


def reading_options() -> Sequence[str]:
    """Return the options that make a JVM use the archive; nothing where there is none."""
    path = archive_path()
    return (quoted(f"-XX:SharedArchiveFile={path}"), _QUIET) if path.is_file() else ()


@contextmanager
def writing_options() -> Iterator[Sequence[str]]:
    """Yield the options that make a JVM write the archive when it ends.

    It must end within the block. The archive is used from then on.

    Raises SparkUnavailableError where it cannot be written, and where the JVM did not write it.
    """
    path = archive_path()
    part = path.with_name(f"{path.name}.{os.getpid()}")
    if not os.access(path.parent, os.W_OK):
        raise SparkUnavailableError(
            f"cannot write {path}: run it as the user who installed Spark; Spark works without "
            "it too"
        )
    try:
        yield (quoted(f"-XX:ArchiveClassesAtExit={part}"), _QUIET)
        if not part.exists():
            raise SparkUnavailableError(
                f"Java wrote no archive to {part}; Spark works without it too"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
