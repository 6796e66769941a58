"""Hadoop's own mini cluster: a resource manager and NodeManagers in one process, whose containers
are processes of this machine. Maven fetches its jars and class into ``.cache/yarn``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Self

from packaging.requirements import Requirement

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "yarn"
CACHE = ROOT / ".cache/yarn"
VERSION = "3.4.2"
_GOALS = ("compiler:compile", "dependency:copy-dependencies")
_OPENS = "--add-opens=java.base/java.lang=ALL-UNNAMED"
_EXECUTOR = b"YarnCoarseGrainedExecutorBackend"
_START_S = 120
_STOP_S = 30


def classpath() -> str:
    """Return the class path of the mini cluster; download and compile it if its sources have
    changed.
    """
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            sys.exit(
                f"make test-yarn needs Java 17 with its compiler, and Maven: no {program} here"
            )
    CACHE.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for path in sorted(FOLDER.iterdir()):
        digest.update(path.read_bytes())
    stamp, built = CACHE / ".complete", CACHE / "built"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        shutil.rmtree(built, ignore_errors=True)
        subprocess.run(
            ["mvn", "--batch-mode", "--quiet", f"-Dbuilt={built}",
             "--file", str(FOLDER / "pom.xml"), *_GOALS],
            check=True,
        )  # fmt: skip
        stamp.write_text(digest.hexdigest())
    return f"{built}/classes:{built}/jars/*"


def environment_archive() -> Path:
    """Pack this Python environment as docs/deploy.md says: tiercel's dependencies, and no more.

    Spark's jars come from YARN.
    """
    pins = hashlib.sha256((ROOT / "constraints.txt").read_bytes()).hexdigest()[:16]
    archive = CACHE / f"environment-{pins}.tar.gz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        new = archive.with_suffix(".new")
        prefix = Path(sys.prefix)
        with tarfile.open(new, "w:gz", compresslevel=1) as tar:
            for path in (prefix / "pyvenv.cfg", *sorted((prefix / "bin").glob("python*"))):
                tar.add(path, path.relative_to(prefix))
            for path in _files({"tiercel"}):
                tar.add(path, path.relative_to(prefix))
        new.rename(archive)
    return archive


def _files(wanted: set[str]) -> list[Path]:
    """Return the files of the packages that these depend on."""
    found: list[Path] = []
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        package, _, extra = name.partition("/")
        with suppress(metadata.PackageNotFoundError):
            distribution = metadata.distribution(package)
            for line in distribution.requires or ():
                one = Requirement(line)
                if one.marker is None or one.marker.evaluate({"extra": extra}):
                    names = {one.name, *(f"{one.name}/{each}" for each in one.extras)}
                    wanted |= names - seen
                    seen |= names
            if package != "tiercel":
                found += [Path(str(each.locate())) for each in distribution.files or ()]
    prefix = Path(sys.prefix)
    chosen = {Path(os.path.normpath(path)) for path in found if "/jars/" not in str(path)}
    return sorted(each for each in chosen if each.is_file() and prefix in each.parents)


class MiniYarn:
    """YARN with NodeManagers; a context manager.

    ``configuration`` is the folder for ``HADOOP_CONF_DIR``.
    """

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.configuration = folder / "hadoop"
        self._folder = folder / "yarn"
        self._nodes = nodes
        self._log = folder / "yarn.log"

    def __enter__(self) -> Self:
        java = classpath()
        for each in (self.configuration, self._folder, self._folder / "tmp"):
            each.mkdir(parents=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["java", "-Xmx512m", _OPENS, f"-Djava.io.tmpdir={self._folder / 'tmp'}",
                 f"-Dtest.build.data={self._folder}", f"-Dhadoop.tmp.dir={self._folder / 'tmp'}",
                 "-cp", java, "MiniYarn", str(self.configuration), str(self._nodes)],
                cwd=self._folder, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        try:
            wait_until(self._ready, _START_S, "the mini cluster to be up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self._process.kill()
        self._process.wait()
        for pid in self._containers(b""):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self._containers(b""), _STOP_S, "the containers to end")

    @property
    def executors(self) -> list[int]:
        """Return the JVMs of Spark's executors, oldest first."""
        found = [pid for pid in self._containers(_EXECUTOR) if _is_java(pid)]
        return sorted(found, key=lambda pid: Path(f"/proc/{pid}").stat().st_ctime)

    def kill(self, count: int) -> str:
        """Kill the oldest executors with SIGKILL."""
        wait_until(lambda: len(self.executors) >= count, 120, f"{count} executors")
        chosen = self.executors[:count]
        for pid in chosen:
            os.kill(pid, signal.SIGKILL)
        return f"{count} executor{'s' * (count > 1)} killed"

    def _ready(self) -> bool:
        text = self._log.read_text(errors="replace")
        assert self._process.poll() is None, f"the mini cluster has ended:\n{text[-2000:]}"
        return "\nready\n" in f"\n{text}"

    def _containers(self, command: bytes) -> list[int]:
        """Return processes below the cluster's folder with this word in their command."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                with suppress(OSError):
                    ours = self._folder in (process / "cwd").readlink().parents
                    if ours and command in (process / "cmdline").read_bytes():
                        found.append(int(process.name))
        return found


def _is_java(pid: int) -> bool:
    with suppress(OSError):
        return (Path(f"/proc/{pid}/exe").readlink()).name == "java"
    return False
