"""The machine and the versions, without which a figure means nothing."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from tiercel.compose.install import find_rabbitmq, find_redis


def machine() -> dict[str, str]:
    """Describe the machine and the versions."""
    return {
        "CPU": _cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "Python": platform.python_version(),
        "Java": _said(["java", "-version"], r'version "([^"]+)"'),
        "RabbitMQ": _rabbitmq(),
        "Redis": _redis(),
        **{
            name: version(name)
            for name in ("pyspark", "pyarrow", "numpy", "pandas", "pika", "redis")
        },
    }


def load() -> float:
    """Return the number of runnable processes, averaged over the last minute.

    More than a few tenths before a run mean that other programs are busy on this machine.
    """
    return round(os.getloadavg()[0], 2)


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.machine()


def _rabbitmq() -> str:
    # Debian's wrapper asks for root, so take the version from the path of the broker's program.
    program = find_rabbitmq()
    found = re.search(r"rabbitmq_server-([\d.]+)", str(program and program.resolve()))
    return found[1] if found else "unknown"


def _redis() -> str:
    program = find_redis()
    return _said([str(program), "--version"], r"v=([\d.]+)") if program else "unknown"


def _said(command: list[str], pattern: str) -> str:
    with suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - programs of this machine
        if found := re.search(pattern, done.stdout + done.stderr):
            return found[1]
    return "unknown"
