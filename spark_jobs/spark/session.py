"""The Spark context that a topology's tasks run in, the versions that it needs, and the class
archive with which its JVM starts faster.

A JVM with the archive starts in half the CPU time. A JVM writes it at the end of a practice run.
See docs/decisions/a-class-archive.md.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from tiercel.spark_jobs.errors import SparkEndedError, SparkUnavailableError, how_jvm_ended
from tiercel.spark_jobs.spark.executors import (
    FIRST_STEADY_S,
    STEADY_S,
    Asking,
    Executor,
    Readiness,
    absence_of,
    steady_slots,
    this_machine,
)
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.settings import (
    ONE_MACHINE,
    SECRET,
    check_process,
    is_local,
    lacks_an_address,
    memory_warning,
    one_machine,
    quoted,
    settings_of,
)
from tiercel.spark_jobs.spark.shipping import pack_code

# An archive that does not fit, for example after an update of Java, is ignored, without a message
# on stdout.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_OLDEST_SPARK = (4, 1)
_OLDEST_JAVA = 17
log = logging.getLogger(__name__)

_ARCHIVE = "tiercel.zip"
_LOCAL_IP = "SPARK_LOCAL_IP"
_LOOK_S = 0.1
_HELD_WITHIN_S = 5.0
# A second each.
_FIRST_LOOKS = 10
_ENDS_WITHIN_S = 1.0
_FIRST_HOLD_S = 2.0
_LONGEST_HOLD_S = 30.0


class SparkUnit:
    """One Spark application: a context, and the runs it hosts one after the other."""

    def __init__(self, application: str, master: str, options: Mapping[str, str]) -> None:
        """Start Spark on ``master`` (its syntax: ``local[2]``, ``spark://host:7077``).

        ``options`` override the defaults. Raises SparkUnavailableError, which says what to do.
        """
        check_versions()
        self._local = is_local(master)
        self._master = master
        settings = settings_of(application, master, options, reading_options())
        if warning := memory_warning(settings):
            log.warning("%s", warning, extra={"event": "python_memory_small"})
        try:
            with reachable_here(master):
                self.context = _started(settings)
        except (PySparkException, Py4JError, OSError) as error:
            _check_jvm()
            raise SparkUnavailableError(
                f"Spark cannot start on {master!r}: {cause_of(str(error))}"
            ) from error
        self._stack = ExitStack()
        self._steady_s = FIRST_STEADY_S
        gateway: Any = SparkContext._gateway  # noqa: SLF001 - the only way to the JVM's process
        # None if another process started the JVM.
        self._process: subprocess.Popen[bytes] | None = gateway.proc
        # Set when executors that cannot start Python no longer need to be kept busy.
        self._unfit_held = threading.Event()
        if self.context.getConf().get("spark.authenticate", "false") != "true":
            log.warning(
                "Spark at %s requires no secret: every process that reaches its ports can "
                "fetch the passwords of RabbitMQ and Redis; set spark.authenticate as "
                "docs/deploy.md says",
                master,
                extra={"event": "spark_open"},
            )

    def use_python(self, executable: str, folders: Sequence[str]) -> None:
        """Make later runs use this Python, which can import modules from ``folders``.

        By default the environment decides. An existing context can be changed only here.
        """
        self.context.pythonExec = executable
        self.context.environment["PYTHONPATH"] = os.pathsep.join(folders)

    def check_alive(self) -> None:
        """Raise SparkEndedError if the JVM has ended, or ends within a second.

        Call it after a failure: a connection breaks a moment before the process ends.
        """
        _check_ended(self._process)

    @property
    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """``silence`` within the block: a cancelled run may end with stack traces too."""
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
        """Return how many Spark tasks can run at once, while none runs.

        On a cluster it waits some seconds for executors with ``wanted`` slots, a second for the
        first one, and checks that Python starts on each. Executors on which it does not start are
        kept busy until it does, so that Spark gives them no tasks.
        """
        python = str(self.context.pythonExec)
        if self._local:
            return this_machine(python, int(self.context.defaultParallelism))
        first = steady_slots(self._free, 1, 0.0)
        if not first:
            trouble = absence_of(len(self.executors()), self._last_end(), self._master)
            return Readiness(slots=0, absent=True, trouble=trouble)
        asking = Asking(self.context)
        began = time.monotonic()
        found = asking.answers(first)
        slots = steady_slots(
            # Spark notices the end of the answers a little later.
            lambda: max(first, self._free()), wanted, self._steady_s,
            spent_s=time.monotonic() - began,
        )  # fmt: skip
        self._steady_s = STEADY_S
        if slots > first:
            found = asking.answers(slots)
        if found.slots and found.unfit:
            self._unfit_held.set()  # the new thread checks all executors
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
        """Keep executors that cannot run bolts busy, and check them again at growing intervals.

        The first check asks all ``slots``; slots of fit executors are free again at once.
        """
        hold_s = _FIRST_HOLD_S
        with suppress(Exception):  # Spark ends
            while not over.is_set():
                found = asking.answers(slots, hold_s)
                if not found.unfit:
                    return
                slots = self._freed()
                if not slots:  # the unfit executors are gone
                    return
                hold_s = min(_LONGEST_HOLD_S, 2 * hold_s)
                log.error(
                    "%s; it is asked again after %.0f s, the others work", found.trouble, hold_s,
                    extra={"event": "executor_unfit"},
                )  # fmt: skip

    def _freed(self) -> int:
        """Return the free slots, once Spark has noticed that the last tasks have ended."""
        end = time.monotonic() + _HELD_WITHIN_S
        while not (slots := self._free()) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return slots

    def start(self, run: Run) -> LongTasks:
        """Start the tasks of a run; returns at once."""
        tasks = LongTasks(self.context, run)
        tasks.start()
        return tasks

    @property
    def free(self) -> int:
        """Return the number of Spark tasks that could run beside the running ones.

        Returns 0 in local mode, which never loses slots.
        """
        return 0 if self._local else self._free()

    @property
    def grows(self) -> bool:
        """True if executors may join: not in local mode."""
        return not self._local

    @property
    def staying(self) -> str:
        """Name the live executors that are not asked to leave, to see changes; two cheap calls."""
        backend = self._backend
        # Spark's ids include the executors that leave.
        ids = str(backend.getExecutorIds().mkString(",")).split(",")
        leaving = str(backend.executorsPendingDecommission().keySet().mkString(",")).split(",")
        return ",".join(id_ for id_ in ids if id_ not in leaving)

    def executors(self) -> list[Executor]:
        """Return the live executors of a cluster."""
        found = self._executor_list.executorList(True).iterator()  # live executors only
        staying = set(self.staying.split(","))
        executors = []
        while found.hasNext():
            one = found.next()
            id_, slots = str(one.id()), int(one.maxTasks())
            if slots:  # the driver has none
                running, leaving = int(one.activeTasks()), id_ not in staying
                host = str(one.hostPort()).rpartition(":")[0].strip("[]")
                executors.append(
                    Executor(id=id_, slots=slots, running=running, leaving=leaving, host=host)
                )
        return executors

    def end_of(self, executor: str) -> str:
        """Return Spark's reason for the end of an executor; empty if it knows none."""
        with suppress(Exception):  # Spark has not noted it yet, or ends itself
            one = self._executor_list.executorSummary(executor)
            return str(one.removeReason().get()) if one.removeReason().isDefined() else ""
        return ""

    def _last_end(self) -> str:
        """Return why the executor that came last has ended; empty if none has."""
        found = self._executor_list.executorList(False).iterator()
        ids = []
        while found.hasNext():
            one = found.next()
            if not one.isActive():
                ids.append(str(one.id()))
        return self.end_of(max(ids, key=int)) if ids else ""

    @property
    def _executor_list(self) -> Any:
        return self.context._jsc.sc().statusStore()  # noqa: SLF001 - the only way to Spark's own list

    def send_away(self, executor: str) -> None:
        """Have Spark start nothing more on an executor. Its tasks go on; repeats change nothing.

        With ``spark.decommission.enabled`` the executor ends by itself once it runs no task.
        """
        java: Any = self.context._jvm  # noqa: SLF001 - pyspark has no call for it
        reason = java.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            "tiercel has it retire", java.scala.Option.empty()
        )
        self._backend.decommissionExecutor(executor, reason, False, False)

    @property
    def _backend(self) -> Any:
        return self.context._jsc.sc().schedulerBackend()  # noqa: SLF001 - Spark's own list

    def _free(self) -> int:
        """Return the free slots of the live executors.

        ``defaultParallelism`` would be no answer: it may be set, and is 2 without executors.

        Spark lists a vanished executor for minutes. A task of an ended run counts until its
        executor reports its end: an executor that does not answer has no free slot.
        """
        return sum(one.free for one in self.executors())

    def begin_with(self, executors: int) -> None:
        """Give back the executors above this number, before the first run.

        A standalone Spark gives an application all executors that there is room for when it
        begins; YARN and Kubernetes begin with ``spark.executor.instances``.
        """
        self.ask_for(executors)
        for _ in range(_FIRST_LOOKS):
            if steady_slots(lambda: len(self.executors()), sys.maxsize, self._steady_s):
                break
        self._steady_s = STEADY_S
        found = [one.id for one in self.executors()]
        surplus = sorted(found, key=lambda id_: (len(id_), id_))[executors:]
        if surplus:
            self.end(surplus)

    def ask_for(self, total: int) -> bool:
        """Ask for this number of executors in all; False if the cluster's manager refuses.

        Spark's own dynamic allocation makes the same call. It ends no executor.
        """
        jvm: Any = self.context._jsc.sc()  # noqa: SLF001 - pyspark has no call for it
        root: Any = self.context._jvm  # noqa: SLF001
        maps = getattr(root.scala.collection.immutable, "Map$")
        return bool(jvm.requestTotalExecutors(total, 0, getattr(maps, "MODULE$").empty()))

    def end(self, executors: Sequence[str]) -> None:
        """End executors that run no Spark task; ``ask_for`` less before, or they are replaced.

        Spark itself leaves out those that have a task after all.
        """
        root: Any = self.context._jvm  # noqa: SLF001 - pyspark has no call for it
        ids = root.java.util.ArrayList()
        for one in executors:
            ids.add(one)
        # The total stays, they do not count as failures, and no task is killed.
        self._backend.killExecutors(root.PythonUtils.toSeq(ids), False, False, False)

    def ship(self, module: str | None, master: str) -> None:
        """Send the folder of ``module`` to the executors of a cluster; None: the code is there."""
        if module is None or is_local(master):
            return
        scratch = tempfile.TemporaryDirectory(prefix="tiercel-", ignore_cleanup_errors=True)
        archive = Path(self._stack.enter_context(scratch)) / _ARCHIVE
        pack_code(module, archive)
        self.context.addPyFile(str(archive))
        # Workers find the archive by themselves. The process that forks them does not: it starts in
        # the executor's folder, where Spark puts the archive.
        others = self.context.environment.get("PYTHONPATH")
        self.context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_ARCHIVE, others]))

    def silence(self) -> None:
        """Discard the stderr of Spark's JVM from now on.

        At the end, interrupted Python workers print meaningless stack traces.
        """
        if self._has_ended:
            return
        with suppress(Py4JError, OSError):  # it ends just now
            java = self._java
            java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))

    def stop(self) -> None:
        """Stop the context, and all work of its JVM."""
        self._unfit_held.set()
        with self._stack:
            if self._has_ended:
                # pyspark would call the JVM.
                self.context._jsc = None  # noqa: SLF001
                _forget_jvm()
            self.context.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def cause_of(said: str) -> str:
    """Return the line of a Java error that names the cause: the last one, else the exception."""
    lines = [line.strip() for line in said.strip().splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    raised = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return ["no reason is known", *lines[:1], *raised[:1], *causes][-1]


def _check_jvm() -> None:
    """Raise SparkEndedError if the JVM of this process ended while Spark started."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - the only way to the JVM's process
    if gateway is not None:
        try:
            _check_ended(gateway.proc)
        except SparkEndedError:
            _forget_jvm()
            raise


def _check_ended(process: subprocess.Popen[bytes] | None) -> None:
    """Raise SparkEndedError if the JVM has ended, or ends within a second."""
    if process is None:
        return
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(_ENDS_WITHIN_S)
        raise SparkEndedError(f"{how_jvm_ended(code)}. Messages wait meanwhile")


def _forget_jvm() -> None:
    """Let this process start another JVM: pyspark would go on with the one that has ended."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - pyspark has no public way
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    if gateway is not None:
        # py4j would tell the JVM of objects that are no longer used.
        gateway._gateway_client.is_connected = False  # noqa: SLF001
        with suppress(OSError):
            gateway.proc.stdin.close()


def _started(settings: Mapping[str, str]) -> SparkContext:
    """Start and return the context.

    All settings except the secret are on the JVM's command line, which every user can read.

    Spark draws the secret itself for ``local[N]``, YARN and Kubernetes. For ``local-cluster`` it is
    drawn here, one per application. Master, workers and driver of a standalone cluster read it from
    a file (``--properties-file``); Spark's worker passes it to executors in their environment.
    """
    shown = {key: value for key, value in settings.items() if key != SECRET}
    secret = settings.get(SECRET)
    if secret is None and settings["spark.master"].startswith("local-cluster"):
        secret = secrets.token_urlsafe(32)
    if secret is not None:
        # pyspark puts the settings that it has when it starts the JVM on the command line; settings
        # made later are not shown.
        known = SparkConf(loadDefaults=False).setAll(list(shown.items()))
        SparkContext._ensure_initialized(conf=known)  # noqa: SLF001
        java: Any = SparkContext._jvm  # noqa: SLF001 - the only way to the JVM
        java.java.lang.System.setProperty(SECRET, secret)
    return SparkContext.getOrCreate(SparkConf().setAll(list(shown.items())))


@contextmanager
def reachable_here(master: str) -> Iterator[None]:
    """Let a JVM that starts in the block do without this machine's name if that has no address.

    An address that the user has set takes precedence.
    """
    if _LOCAL_IP in os.environ or not lacks_an_address(master):
        yield
        return
    os.environ[_LOCAL_IP] = ONE_MACHINE["spark.driver.host"]
    try:
        yield
    finally:
        del os.environ[_LOCAL_IP]


def check_versions() -> None:
    """Raise SparkUnavailableError if PySpark or Java is missing or too old, or Java cannot start
    from this process.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if found < _OLDEST_SPARK:
        raise SparkUnavailableError(
            f"PySpark {pyspark.__version__} is too old: install pyspark 4.1 or newer"
        )
    java = _java_program()
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - found on PATH
    answer = done.stderr + done.stdout  # a JVM that cannot start says why on stdout
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        # Limits of processes or memory stop a JVM; lines in brackets are only its warnings.
        lines = [line for line in answer.splitlines() if line and not line.startswith(("[", "Err"))]
        said = f"is {version[1]}" if version else f"does not start ({[*lines, 'no reason'][0]})"
        raise SparkUnavailableError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, {java} {said}: "
            f"{'' if version else 'see ulimit -u and -v, or '}apt-get install "
            "openjdk-17-jre-headless"
        )
    check_process()


def _java_program() -> str:
    """Return the Java that Spark starts. Raises SparkUnavailableError if there is none."""
    home = os.environ.get("JAVA_HOME")
    # Spark takes the program in JAVA_HOME without a look at PATH.
    java = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if java is not None:
        return java
    if home:
        raise SparkUnavailableError(
            f"Spark takes Java from JAVA_HOME, and there is no program {home}/bin/java: correct "
            "JAVA_HOME, or unset it to take the java on PATH"
        )
    raise SparkUnavailableError(
        f"Spark needs Java {_OLDEST_JAVA} or newer: apt-get install openjdk-17-jre-headless"
    )


def archive_path() -> Path:
    """Return the path of the class archive, beside Spark."""
    return Path(pyspark.__file__).parent / "tiercel.jsa"


def reading_options() -> Sequence[str]:
    """Return the options that make a JVM use the archive; none if it does not exist."""
    path = archive_path()
    return (quoted(f"-XX:SharedArchiveFile={path}"), _QUIET) if path.is_file() else ()


@contextmanager
def writing_options() -> Iterator[Sequence[str]]:
    """Yield the options that make a JVM write the archive when it ends.

    The JVM must end within the block. The archive is used from then on. Raises
    SparkUnavailableError if the archive cannot be written or the JVM did not write it.
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
    """Run a job with tasks in Python processes, as a topology's run does."""
    context.setJobGroup("practice", "tiercel practises the start of a run")
    context.parallelize(range(2), 2).mapPartitionsWithIndex(_same).collect()


def _same(number: int, _: Iterable[int]) -> Iterator[int]:
    yield number


def end_java(within_s: float = _PATIENCE_S) -> None:
    """End the JVM of this process and wait for it: it removes its temporary files as it ends.

    No session can start here any more. Raises subprocess.TimeoutExpired if it takes longer.
    """
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - the only way to the JVM's process
    if gateway is None or gateway.proc is None:
        return
    gateway.shutdown()
    # It ends when its standard input is closed.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=within_s)


def make_class_archive() -> Path:
    """Write the class archive, with which Spark's JVM starts faster in local mode; returns its
    path.

    Starts Spark, and ends the JVM of this process. Raises SparkUnavailableError.
    """
    with writing_options() as java_options:
        spark = SparkUnit("tiercel prepare", "local[2]", one_machine(java_options))
        try:
            # Before any Python process: the thread that copies a process's stderr keeps the JVM's
            # stderr from when the process began.
            spark.silence()
            practise(spark.context)
        finally:
            spark.stop()
            end_java()
    return archive_path()
