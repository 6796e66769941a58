"""``make test-yarn``: word count and slow work on YARN, while executors are killed.

The environment is shipped as docs/deploy.md says; all other settings are the defaults.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from importlib import metadata
from pathlib import Path

from tests.clusters.exam import SLOW_WORK, WORD_COUNT, Exam, Place, Seen, Work, processes
from tests.clusters.mini_yarn import ROOT, VERSION, MiniYarn, environment_archive
from tiercel.compose.embedded import EmbeddedServices

_PYTHON = "./environment/bin/python"
# Executors to kill: one after the other, and then two at once. By default Spark ends an application
# that has lost three.
_KILLS = (1, 1, 2, 2)


def main() -> int:
    """Print the findings; return 1 if any promise was broken."""
    # If this process is terminated, it ends all its children.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    archive = environment_archive()
    with tempfile.TemporaryDirectory(prefix="tiercel-yarn-") as name:
        folder = Path(name)
        shutil.copy(Path(__file__).with_name("slow_work.py"), folder)
        with EmbeddedServices() as servers, MiniYarn(folder) as yarn:
            place = Place(
                amqp_url=servers.amqp_url,
                redis_url=servers.redis_url,
                folder=folder,
                environment={
                    **os.environ,
                    "HADOOP_CONF_DIR": str(yarn.configuration),
                    "PYSPARK_PYTHON": _PYTHON,
                    "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
                },
            )
            seen = []
            for work in (WORD_COUNT, SLOW_WORK):
                try:
                    seen.append(examined(work, place, yarn, archive))
                    print(seen[-1], flush=True)
                except AssertionError:
                    keep(folder)
                    raise
            if any(each.faults for each in seen):
                keep(folder)
    return shown(seen)


def examined(work: Work, place: Place, yarn: MiniYarn, archive: Path) -> Seen:
    """Run one topology with the options of docs/deploy.md."""
    options = {
        # The default is the user's home folder, where a killed driver would leave files.
        "spark.yarn.stagingDir": f"file://{place.folder}",
        "spark.yarn.dist.archives": f"{archive}#environment",
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
    }
    arguments = [word for pair in options.items() for word in ("--conf", "=".join(pair))]
    with processes(work, place, "--master", "yarn", *arguments) as running:
        exam = Exam(work, place, partial(_all_run, running))
        return exam.take([partial(yarn.kill, count) for count in _KILLS])


def shown(seen: list[Seen]) -> int:
    """Print the table and the broken promises."""
    spark = metadata.version("pyspark")
    print(f"\nHadoop {VERSION}, Spark {spark}, Python {sys.version.split()[0]}\n\n{Seen.HEAD}")
    for each in seen:
        print(each)
    faults = [f"{each.work}: {fault}" for each in seen for fault in each.faults]
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


def keep(folder: Path) -> None:
    """Keep the logs, which would be deleted with the folder."""
    kept = ROOT / "artifacts/yarn"
    kept.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.log"):
        shutil.copy(path, kept)
    for path in folder.glob("yarn/**/stderr"):
        shutil.copy(path, kept / f"{path.parent.name}.log")
    print(f"the logs are in {kept}", file=sys.stderr)


def _all_run(running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        if process.poll() is not None:
            raise AssertionError(f"{process.args!r} has ended with {process.returncode}")


if __name__ == "__main__":
    sys.exit(main())
