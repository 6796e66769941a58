"""The settings of Spark, and where each applies. Does not import pyspark."""

from __future__ import annotations

import codecs
import locale
import os
import pwd
import re
import resource
import socket
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from tiercel.spark_jobs.errors import SparkUnavailableError

# Spark counts the failures of a task over the life of its job, and a job that runs for months must
# not end because of ten.
ATTEMPTS = 1_000_000

# Kept off the command line, which every user can read.
SECRET = "spark.authenticate.secret"  # noqa: S105 - a setting's name

EVERYWHERE = {
    "spark.ui.enabled": "false",
    # Spark's page has no login, so it is read-only if the operator switches it on.
    "spark.ui.killEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The driver asks how many tasks have a slot: by default, the start of a task is not told before
    # the next heartbeat of an executor, up to ten seconds later.
    "spark.ui.liveUpdate.period": "0",
    "spark.python.unix.domain.socket.enabled": "true",
    # Each executor imports everything in one process, which forks its Python workers.
    "spark.python.daemon.module": "tiercel.spark_jobs.spark.python_daemon",
    # A process that forks must have no other threads. Each Spark task has one core, so BLAS needs
    # one thread.
    "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
    "spark.executorEnv.JE_ARROW_MALLOC_CONF": "background_thread:false",
    # For tasks on executors. In local mode the number is part of the master.
    "spark.task.maxFailures": str(ATTEMPTS),
    # Tasks fail because of tuples and processes, not machines; over months all executors would be
    # excluded.
    "spark.excludeOnFailure.enabled": "false",
    # A run has as many tasks as there are slots: executors that come and go are the
    # operator's decision.
    "spark.dynamicAllocation.enabled": "false",
    # Two attempts at one task at the same time would take each other's inbox.
    "spark.speculation": "false",
    # An executor that gets SIGTERM ends once its tasks have ended, which the driver then asks for.
    "spark.decommission.enabled": "true",
    "spark.executor.decommission.signal": "TERM",
    # Kubernetes would run a script of Spark's image first, which sends another signal.
    "spark.kubernetes.decommission.script": "/bin/true",
    # Tasks read from Redis, not from the disk of an executor.
    "spark.locality.wait": "0",
}

# For YARN and Kubernetes, which end an application of two executors when the third executor is lost
# within the validity interval: a run must outlive its executors. The interval is for a limit of
# the operator's.
MANAGED = {
    "spark.executor.failuresValidityInterval": "1h",
    "spark.executor.maxNumFailures": str(ATTEMPTS),
}

# For JVMs that share the machine with the Python processes: after the start they only wait.
# Executors of a cluster keep Java's defaults: the operator tunes them, and an idle compiler or
# collector costs no CPU.
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

# Other machines can reach no port, and other users of this machine learn nothing from one: Spark's
# broadcasts contain passwords and the signing key.
ONE_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # Spark's defaults, version 1 and AES/CTR, exist for compatibility: weaker keys, and no
    # integrity check.
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
}

# Two minutes without heartbeats, while the machine sleeps or the process is stopped, are too long
# for Spark: it removes the executor, which is its own JVM, cannot register it again in local mode,
# and ends the JVM after 60 further heartbeats, with an error for each.
LOCAL = {"spark.storage.blockManagerHeartbeatTimeoutMs": "365d"}

_REFUSED = {
    "spark.speculation": "two attempts at one task would take each other's inbox",
    "spark.dynamicAllocation.enabled": (
        "it cannot see the messages that wait (--executors 2..20 does)"
    ),
}
# The forms that Spark parses; others end its start with an error of one of its classes.
_MASTER = re.compile(
    r"local(\[([1-9]\d*|\*)(,\d+)?\])?"
    r"|local-cluster\[\s*\d+\s*(,\s*\d+\s*){2}\]"
    r"|spark://[^\s,/]+:\d+(,[^\s,/]+:\d+)*"
    r"|k8s://\S+"
    r"|yarn"
)
_PYTHON_MEMORY = "spark.executor.pyspark.memory"
_SIZE = re.compile(r"(\d+)([kmgt]?)b?")
_MIB_IN = {"k": 1 / 1024, "m": 1, "": 1, "g": 1024, "t": 1024 * 1024}
_LEAST_MIB = 2048
_LOG4J = resources.files("tiercel.spark_jobs.spark").joinpath("log4j2.properties")


def settings_of(
    application: str, master: str, options: Mapping[str, str], java_options: Sequence[str]
) -> dict[str, str]:
    """Return all settings that Spark starts with; ``options`` override the defaults.

    ``java_options`` are for all JVMs if all of Spark is on one machine. Raises
    SparkUnavailableError for an option that tiercel cannot run with.
    """
    for name, why in _REFUSED.items():
        if options.get(name, "false").lower() == "true":
            raise SparkUnavailableError(
                f"tiercel cannot run with {name}, because {why}: remove it from the Spark options"
            )
    where = one_machine(java_options) if is_one_machine(master) else MANAGED
    if is_local(master):
        where = {**where, **LOCAL}
    names = {"spark.master": with_retries(master), "spark.app.name": application}
    return {**EVERYWHERE, **where, **options, **names}


def memory_warning(options: Mapping[str, str]) -> str:
    """Return a warning if Spark's Python processes may have too little memory to start; empty if
    not, or if none is set.
    """
    said = _SIZE.fullmatch(options.get(_PYTHON_MEMORY, "").lower())
    if said is None:
        return ""
    cores = options.get("spark.executor.cores", "1")
    each_mib = int(said[1]) * _MIB_IN[said[2]] / (int(cores) if cores.isdecimal() else 1)
    if each_mib >= _LEAST_MIB:
        return ""
    return (
        f"{_PYTHON_MEMORY} leaves {each_mib:,.0f} MiB of address space to each Python process, and "
        "a process with NumPy and Arrow may take more than 1 GiB before your bolts, most of it "
        f"unused: give at least {_LEAST_MIB:,} MiB for each core of an executor, or remove it"
    )


def one_machine(java_options: Sequence[str]) -> dict[str, str]:
    """Return the settings for all of Spark on this machine."""
    java = " ".join([quoted(f"-Dlog4j2.configurationFile={_LOG4J}"), SMALL_JVM, *java_options])
    # For the executors of local-cluster; in local mode the driver's JVM is the executor. With the
    # archive a replacement executor starts in half the time.
    executors = " ".join([SMALL_JVM, *java_options])
    return {
        **ONE_MACHINE,
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": executors,
    }


def quoted(option: str) -> str:
    """Return one Java option, quoted for Spark's list of options.

    >>> quoted("-Dfile=/a folder/settings")
    '"-Dfile=/a folder/settings"'
    """
    return '"' + re.sub(r'(["\\])', r"\\\1", option) + '"'


def check_master(master: str) -> str:
    """Return a master that Spark can parse. Raises ValueError for any other.

    >>> check_master("local[2]"), check_master("spark://one:7077,two:7077")
    ('local[2]', 'spark://one:7077,two:7077')
    """
    if _MASTER.fullmatch(master) is None:
        raise ValueError(
            "must look like local[2], spark://host:7077, k8s://https://host:6443 or yarn"
        )
    return master


def is_one_machine(master: str) -> bool:
    """Return True for local mode and ``local-cluster``.

    >>> is_one_machine("local[2]"), is_one_machine("local-cluster[2,4,1024]")
    (True, True)
    >>> is_one_machine("spark://host:7077")
    False
    """
    return re.match(r"local(-cluster)?(\[|$)", master) is not None


def is_local(master: str) -> bool:
    """Return True for local mode, where all of Spark is one process.

    >>> is_local("local"), is_local("local[2]"), is_local("local-cluster[2,4,1024]")
    (True, True, False)
    """
    return re.match(r"local(\[|$)", master) is not None


def lacks_an_address(master: str) -> bool:
    """Return True if all of Spark is on this machine, and the machine's name has no address.

    A laptop between two networks is an example. A JVM that looks the name up ends.
    """
    if not is_one_machine(master):
        return False
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return True
    return False


def with_retries(master: str) -> str:
    """Give ``local[N]`` as many attempts as a cluster has: its default is one per task.

    >>> with_retries("local[2]"), with_retries("local"), with_retries("spark://host:7077")
    ('local[2,1000000]', 'local[1,1000000]', 'spark://host:7077')
    """
    if master == "local":
        return f"local[1,{ATTEMPTS}]"
    match = re.fullmatch(r"local\[(\d+|\*)\]", master)
    return f"local[{match[1]},{ATTEMPTS}]" if match else master


# Java opens each of Spark's archives: 300 are too few, 350 enough.
_LEAST_FILES = 350


def check_process() -> None:
    """Raise SparkUnavailableError if Java cannot start from this process: because of its user,
    whose name Hadoop's login needs, its limit of open files, or its locale.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise SparkUnavailableError(
            f"Spark cannot start as user id {os.getuid()}, which has no row in /etc/passwd: start "
            "it as a user who has one (in tiercel's image: 10001), or add a row: "
            f"echo 'spark:x:{os.getuid()}:{os.getgid()}::/tmp:/bin/sh' >> /etc/passwd"
        ) from None
    # Java raises its own limit up to this one.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= files < _LEAST_FILES:
        raise SparkUnavailableError(
            f"Spark cannot start where a process may open only {files} files: raise the limit, as "
            "with ulimit -n 4096 or nofile in /etc/security/limits.conf"
        )
    folder = str(Path.cwd())
    if not folder.isascii() and codecs.lookup(locale.getencoding()).name == "ascii":
        raise SparkUnavailableError(
            f"Spark cannot start in {folder}: in this locale Java reads only ASCII names of "
            "folders; set LC_ALL=C.UTF-8"
        )
