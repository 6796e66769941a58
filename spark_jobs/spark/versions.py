"""Checks of what must be installed before Spark can start."""

from __future__ import annotations

import re
import shutil
import subprocess

import pyspark

from tiercel.spark_jobs.errors import SparkUnavailableError

_OLDEST_SPARK = (4, 1)
_OLDEST_JAVA = 17


def check_versions() -> None:
    """Raise SparkUnavailableError if PySpark or Java is missing or too old."""
    found = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if found < _OLDEST_SPARK:
        raise SparkUnavailableError(
            f"PySpark {pyspark.__version__} is too old: install pyspark 4.1 or newer"
        )
    java = shutil.which("java")
    if java is None:
        raise SparkUnavailableError(
            f"Spark needs Java {_OLDEST_JAVA} or newer: apt-get install openjdk-17-jre-headless"
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 - found on PATH
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        shown = version[1] if version else "of unknown version"
        raise SparkUnavailableError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, {java} is {shown}: apt-get install "
            "openjdk-17-jre-headless"
        )
