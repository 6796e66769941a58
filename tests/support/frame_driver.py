"""A Spark driver with a query over a queue, in a separate process that a test may kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from tiercel.spark_jobs.spark.settings import SMALL_JVM

ROOT = Path(__file__).parents[2]

_SCRIPT = """
import sys

from pyspark.sql import SparkSession
from tiercel.dataframe import register_rabbitmq

url, queue, folder, master, batch, java = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.driver.extraJavaOptions", java)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.task.maxFailures", "20")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
register_rabbitmq(spark)
rows = spark.readStream.format("rabbitmq").option("url", url).option("queue", queue)
rows = rows.option("maxMessagesPerTrigger", batch).option("partitions", 2).load()
query = (
    rows.selectExpr("cast(body as string) body")
    .mapInArrow(lambda parts: parts, "body string")
    .writeStream.format("text")
    .option("path", folder + "/rows")
    .option("checkpointLocation", folder + "/checkpoint")
    .start()
)
query.awaitTermination()
"""


class FrameDriver:
    """Writes the messages of a queue into text files, each batch once."""

    def __init__(
        self,
        amqp_url: str,
        queue: str,
        folder: Path,
        *,
        master: str = "local[2]",
        batch: int = 200,
    ) -> None:
        """``batch`` is the maximum of messages per batch."""
        self.folder = folder
        self.batch = batch
        self._arguments = [amqp_url, queue, str(folder), master, str(batch), SMALL_JVM]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        script = self.folder / "driver.py"
        script.write_text(_SCRIPT)
        with (self.folder / "driver.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *self._arguments],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self, seconds: float) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Kill the driver and its JVM at once, like a crash of the machine."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()

    def written(self) -> Counter[str]:
        """Return the rows that the sink lists; files of failed batches do not count."""
        rows: Counter[str] = Counter()
        for path in self._files():
            rows.update(path.read_text().split())
        return rows

    def _files(self) -> set[Path]:
        found = set()
        for log in (self.folder / "rows/_spark_metadata").glob("[0-9]*"):
            for line in log.read_text().splitlines()[1:]:
                found.add(Path(urlsplit(json.loads(line)["path"]).path))
        return found
