"""A server of Spark Connect in a separate process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark

from tests.support.waiting import wait_until

_SPARK = Path(pyspark.__file__).parent
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


class ConnectServer:
    """Spark with two cores, for clients of Connect; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = [f"--conf={name}={value}" for name, value in _SETTINGS.items()]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *(_SPARK / "bin/spark-submit", "--master", "local[2]", "--class", _SERVER),
                    *(*settings, "spark-internal"),
                ],
                cwd=self._folder,
                env={**os.environ, "SPARK_HOME": str(_SPARK), "PYSPARK_PYTHON": sys.executable},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        found = wait_until(
            lambda: re.search(r"Connect server started at: (\S+)", self._log.read_text()),
            60,
            f"a server of Spark Connect: {self._log}",
        )
        self.url = f"sc://{found[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def _log(self) -> Path:
        return self._folder / "connect.log"
