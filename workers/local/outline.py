"""The outline of a topology's code before it is started: whether it loads, its name, and its files.

A new process makes it, which has not imported the code before:
``python -m tiercel.workers.local.outline MODULE:TOPOLOGY FILE`` writes the outline into the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tiercel.queues.errors import QueuesError
from tiercel.spark_jobs.errors import SparkJobsError
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.spark_jobs.reasons import is_users
from tiercel.workers.config import Settings
from tiercel.workers.errors import WorkersError
from tiercel.workers.loading import load_for_spark, module_of


@dataclass(frozen=True, kw_only=True)
class Outline:
    """The current code of a topology."""

    # One line why it cannot be started; empty if it can.
    error: str = ""
    topology: str = ""
    files: tuple[Path, ...] = ()

    def as_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Outline:
        """Read the output of ``as_json``. Raises ValueError for anything else."""
        said = json.loads(text)
        return cls(**{**said, "files": tuple(map(Path, said["files"]))})


def files_of(name: str) -> Iterator[Path]:
    """Yield the files of the user's code that this process has imported for ``MODULE:TOPOLOGY``,
    and all of the module's package.
    """
    for module, loaded in sorted(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if file and module != "__main__" and is_users(module, file):
            yield Path(file).absolute()
    top = module_of(name).partition(".")[0]
    found = getattr(sys.modules.get(top), "__file__", None)
    if found and Path(found).name == "__init__.py" and is_users(top, found):
        yield from sorted(Path(found).absolute().parent.rglob("*.py"))


def _outline(name: str) -> Outline:
    try:
        topology = load_for_spark(name, Settings.load().spout_tasks)
    except (WorkersError, SparkJobsError, QueuesError) as error:
        return Outline(error=redact(str(error)))
    return Outline(topology=topology.name, files=tuple(dict.fromkeys(files_of(name))))


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(_outline(sys.argv[1]).as_json())
