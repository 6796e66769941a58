"""The Python process of an executor that imports everything once and forks the workers.

Spark runs it through ``spark.python.daemon.module``. Spark reads its standard output, so nothing
here may print. See docs/decisions/each-executor-imports-once.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path

# Importing it imports everything that a bolt task uses.
_OURS = "tiercel.spark_jobs.spark.run"
# Command-line argument with the worker's module.
_WORKER = 1
# Environment variable: the folder for the socket on which Spark's JVM calls this process.
_SOCKETS = "PYTHON_WORKER_FACTORY_SOCK_DIR"
# Longest path of a unix socket, in bytes; pyspark's names are ".UUID.sock".
_LONGEST_PATH = 107
_SOCKET_NAME = len("/.") + 36 + len(".sock")
_PREFIX = "tiercel-"
_FOLDER_NAME = len("/" + _PREFIX) + 8
# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def use_the_folder() -> None:
    """Take Spark's archives out of the path if pyspark is installed here.

    Spark puts ``pyspark.zip`` first. It has only sources, which each process would compile again.
    Call this before pyspark is imported.
    """
    for entry in list(sys.path):
        archive = Path(entry)
        if archive.parts[-3:] == ("python", "lib", "pyspark.zip"):
            package = archive.parents[2]
            if (
                str(package.parent) in sys.path
                and (package / "__init__.py").exists()
                and (package.parent / "py4j").is_dir()
            ):
                sys.path[:] = [each for each in sys.path if Path(each).parent != archive.parent]


def import_everything(worker: str | None) -> None:
    """Import what a bolt task needs, and Spark's ``worker`` module; starts no thread.

    The first array of pyarrow imports pandas, if that is installed.
    """
    importlib.import_module(_OURS)
    importlib.import_module("pyarrow").array([0])
    if worker is not None:
        # If it cannot be imported, the worker itself reports that to Spark.
        with contextlib.suppress(ImportError):
            importlib.import_module(worker)


def private_folder(named: str) -> str | None:
    """Make a folder for the socket that only this user can enter and whose path is short enough.

    ``named`` is ``spark.python.unix.domain.socket.dir`` or the JVM's temporary folder, whose path
    on YARN is too long. So the new folder is in ``named``, or else in this host's temporary folder.
    Its name is random and made on the executor; pyspark tells Spark the path. None: ``named`` is so
    long that only a socket fits, and is used itself.
    """
    for place in (named, tempfile.gettempdir(), "/tmp"):  # noqa: S108 - the folder in it is private
        room = _LONGEST_PATH - _SOCKET_NAME - len(os.fsencode(place))
        if room >= _FOLDER_NAME:
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        elif room >= 0 and place == named:
            return None
    return None


def prepare_forks() -> None:
    """Have the workers killed as soon as this process ends; and have processes that a bolt forks,
    as ``multiprocessing`` does, let go of the connection between their worker and Spark, and know
    that they are no workers.

    A worker that outlives this process has no reader of its standard output: each ``print`` of a
    bolt would raise, and fail its tuple. Spark sees a worker's death by the end of its connection,
    which a child that lives on would keep open: no task would be restarted until the driver misses
    its heartbeats and begins a new run.
    """
    is_forked = importlib.import_module("tiercel.spark_jobs.reasons").FORKED
    prctl = ctypes.CDLL(None).prctl
    daemon = os.getpid()
    of_worker: set[str] = set()

    def forked() -> None:
        if os.getppid() == daemon:
            of_worker.update(_sockets().values())
            # It follows the thread that forks; here is only one.
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != daemon:
                os._exit(1)
            return
        is_forked.set()
        # Replaced, not closed: Python's objects still have these numbers, and close them.
        null = os.open(os.devnull, os.O_RDWR)
        for number, name in _sockets().items():
            if name in of_worker:
                os.dup2(null, number, inheritable=False)
        os.close(null)

    os.register_at_fork(after_in_child=forked)


def _sockets() -> dict[int, str]:
    """Return the names of the sockets of this process by their file descriptors."""
    found: dict[int, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        # The descriptor of the folder itself is closed by now.
        with contextlib.suppress(OSError):
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[int(entry.name)] = name
    return found


def main() -> None:
    """Import, then fork workers until Spark closes the standard input."""
    use_the_folder()
    import_everything(sys.argv[_WORKER] if len(sys.argv) > _WORKER else None)
    # Exclude start-up objects from garbage collection in all workers: collecting would touch, and
    # so copy, pages that they share.
    importlib.import_module("tiercel.spark_jobs.process.interpreter").freeze_startup_objects()
    prepare_forks()
    named = os.environ.get(_SOCKETS)
    folder = None if named is None else private_folder(named)
    if folder is not None:
        os.environ[_SOCKETS] = folder
    try:
        importlib.import_module("pyspark.daemon").manager()
    finally:
        # The socket is removed by now. Workers end without coming here.
        if folder is not None:
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


if __name__ == "__main__":
    main()
