"""The file with Spark's classes as its JVM has them in memory.

A JVM that maps it starts in half the CPU time.

See docs/decisions/a-class-archive.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tiercel.spark_jobs.errors import SparkUnavailableError
from tiercel.spark_jobs.spark.settings import quoted

# An archive that does not fit, such as after an update of Java, is passed over. That needs no
# words on stdout.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


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
