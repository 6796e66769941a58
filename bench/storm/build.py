"""Storm's jars and the classes of our topologies, by Maven, in ``.cache/bench/storm``."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from bench.rig import ROOT, BenchError

FOLDER = Path(__file__).resolve().parent
BUILT = ROOT / ".cache/bench/storm"
_GOALS = ("compiler:compile", "dependency:copy-dependencies")
_WITHIN_S = 600


class StormMissingError(Exception):
    """Storm cannot be had on this machine; the message says which part is missing."""


def classpath() -> str:
    """Return the class path of our topologies; download and compile if the sources have changed.

    Raises StormMissingError, and BenchError if our own code does not compile.
    """
    for program, package in (("java", "Java"), ("javac", "Java's compiler"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise StormMissingError(f"{package} is missing: there is no {program} on the PATH")
    digest = _digest()
    stamp = BUILT / ".complete"
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(BUILT, ignore_errors=True)
        _build()
        stamp.write_text(digest)
    return os.pathsep.join([str(BUILT / "classes"), str(BUILT / "jars/*")])


def _digest() -> str:
    """Hash the sources, so that each version of them is built once."""
    found = hashlib.sha256()
    for path in (FOLDER / "pom.xml", *sorted(FOLDER.glob("java/*.java"))):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _build() -> None:
    command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", f"-Dbuilt={BUILT}"]
    try:
        done = subprocess.run(  # noqa: S603 - our own pom.xml
            [*command, "--file", str(FOLDER / "pom.xml"), *_GOALS],
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN_S,
        )
    except subprocess.TimeoutExpired as error:
        raise StormMissingError(f"Maven was not done within {_WITHIN_S} s") from error
    if done.returncode:
        raise failure(done.stdout + done.stderr)


def failure(output: str) -> Exception:
    """Make the error for a failed build from Maven's output. Pure."""
    found = re.findall(r"^\[ERROR\] (.+)", output, re.MULTILINE)
    first = next((line for line in found if not line.startswith("COMPILATION")), "no reason given")
    if "COMPILATION ERROR" in output:
        return BenchError(f"bench/storm/java does not compile: {first}")
    return StormMissingError(f"Maven could not fetch its jars: {first}")
