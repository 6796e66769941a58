"""The Python process of an executor from which its workers are forked: it imports everything once.

Spark runs it by ``spark.python.daemon.module``. Its standard output is Spark's: nothing here may
print. See docs/decisions/each-executor-imports-once.md.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

# It imports all that a bolt task runs on.
_OURS = "tiercel.spark_jobs.spark.run"
# Spark names the worker's module there, on the command line.
_WORKER = 1


def use_the_folder() -> None:
    """Take Spark's archives out of the path if this interpreter has what lies in them.

    Spark puts ``pyspark.zip`` first. It holds sources only, which each process would compile again.
    Call it before pyspark is imported.
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

    The first array of pyarrow imports pandas, where that is installed.
    """
    importlib.import_module(_OURS)
    importlib.import_module("pyarrow").array([0])
    if worker is not None:
        # If it cannot be imported, the worker itself reports that to Spark.
        with contextlib.suppress(ImportError):
            importlib.import_module(worker)


def main() -> None:
    """Import, then fork workers until Spark closes the standard input."""
    use_the_folder()
    import_everything(sys.argv[_WORKER] if len(sys.argv) > _WORKER else None)
    # Keep the objects of the start-up out of the garbage collector in all workers, whose
    # pages it would copy.
    importlib.import_module("tiercel.spark_jobs.running.interpreter").freeze_startup_objects()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
