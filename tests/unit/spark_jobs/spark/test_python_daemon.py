"""The Python process that forks Spark's workers imports everything once, and is safe to fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tiercel.spark_jobs.spark.settings import EVERYWHERE

ROOT = Path(__file__).parents[4]
LIB = Path(pyspark.__file__).parent / "python" / "lib"
ARCHIVES = [str(LIB / "pyspark.zip"), *map(str, LIB.glob("py4j-*.zip"))]
PREFIX = "spark.executorEnv."
WHERE = """
import sys
from tiercel.spark_jobs.spark.python_daemon import use_the_folder
use_the_folder()
import pyspark
print(pyspark.__file__)
print([each for each in sys.path if each.endswith('.zip')][:2])
"""
THREADS = """
import os
from tiercel.spark_jobs.spark.python_daemon import import_everything
import_everything("pyspark.worker")
print(len(os.listdir("/proc/self/task")))
"""
IMPORTED = """
import sys
from tiercel.spark_jobs.spark.python_daemon import import_everything
import_everything("pyspark.worker")
before = set(sys.modules)
import pyarrow, numpy, tiercel.spark_jobs.spark.run
pyarrow.array([1.5]).to_numpy()
print(*sorted(set(sys.modules) - before))
wanted = ("pandas", "redis", "pyspark.worker", "tiercel.spark_jobs.process.host")
print(all(name in before for name in wanted))
"""
FORKED = """
import os
from tiercel.spark_jobs.spark.python_daemon import import_everything
import_everything("pyspark.worker")
import numpy, pyarrow, pyarrow.compute
for _ in range(3):
    child = os.fork()
    if child == 0:
        square = numpy.ones((300, 300))
        texts = [str(each) for each in range(200_000)]
        table = pyarrow.table({"x": numpy.arange(200_000), "y": texts})
        table.sort_by("y").to_pandas()
        os._exit(0 if (square @ square)[0, 0] == 300 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

CHILDREN = """
import os, signal, socket, time
from tiercel.spark_jobs.spark.python_daemon import prepare_forks
prepare_forks()
spark, connection = socket.socketpair()
if os.fork() == 0:
    spark.close()
    copy = os.dup(connection.fileno())
    parent, child = socket.socketpair()
    if os.fork() == 0:
        child.send(b"%d" % os.getpid())
        time.sleep(60)
        os._exit(0)
    connection.send(parent.recv(20))
    os.kill(os.getpid(), signal.SIGKILL)
connection.close()
spark.settimeout(20)
child = int(spark.recv(20))
try:
    print(spark.recv(1))
finally:
    os.kill(child, signal.SIGKILL)
"""

ORPHAN = """
import os, signal, time
from tiercel.spark_jobs.spark.python_daemon import prepare_forks
reading, writing = os.pipe()
if os.fork() == 0:
    prepare_forks()
    if os.fork() == 0:
        os.write(writing, b"w")
        time.sleep(60)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    os.kill(os.getpid(), signal.SIGKILL)
os.close(writing)
began = time.monotonic()
os.wait()
print(os.read(reading, 1), time.monotonic() - began < 30)
"""

RETURNS = """
import os, sys
from tiercel import BasicBolt, QueueSpout, TopologyBuilder
from tiercel.spark_jobs.spark.python_daemon import prepare_forks
from tiercel.testing import LocalCluster

class Forks(BasicBolt):
    def execute(self, tup, collector):
        if os.fork() == 0:
            END
        os.wait()
        os.write(1, b"%d executed" % tup["number"])

builder = TopologyBuilder("forks")
builder.set_spout("numbers", QueueSpout("numbers", fields="number long", format="json"))
builder.set_bolt("forks", Forks()).shuffle_grouping("numbers")
prepare_forks()
if os.fork() == 0:
    with LocalCluster(builder.build()) as cluster:
        cluster.feed_body('{"number": 1}')
        cluster.run_until_idle()
        os.write(1, f", acked {cluster.acked('numbers')}".encode())
    os._exit(0)
os.wait()
"""


def started(code: str, *folders: object) -> str:
    """Return the output of a Python process with these folders first on its PYTHONPATH and Spark's
    settings in its environment.
    """
    settings = {
        key.removeprefix(PREFIX): value
        for key, value in EVERYWHERE.items()
        if key.startswith(PREFIX)
    }
    path = os.pathsep.join(map(str, [*folders, ROOT]))
    environment = {**os.environ, **settings, "PYTHONPATH": path}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_the_archives_go_where_this_python_has_their_package() -> None:
    unchanged = WHERE.replace("use_the_folder()\n", "")
    assert ".zip" in started(unchanged, *ARCHIVES).splitlines()[0], (
        "else there is nothing to do any more"
    )
    file, archives = started(WHERE, *ARCHIVES).splitlines()
    assert file == pyspark.__file__
    own = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    assert archives.count(".zip") == archives.count(own), "py4j's is gone too"


@pytest.mark.parametrize(
    "folder", ["python/lib", "site/pyspark/python/lib"], ids=["Spark's own", "another Python's"]
)
def test_archives_of_other_installations_stay(tmp_path: Path, folder: str) -> None:
    lib = tmp_path / folder
    lib.mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-0-src.zip"):
        (lib / name).write_bytes(Path(ARCHIVES[0]).read_bytes())
    assert started(WHERE, lib / "pyspark.zip").splitlines()[0].startswith(str(lib / "pyspark.zip"))


def test_what_it_imports_starts_no_thread() -> None:
    assert started(THREADS) == "1\n"


def test_a_worker_has_nothing_left_to_import() -> None:
    late, everything = started(IMPORTED).splitlines()
    assert late == ""
    assert everything == "True"


def test_what_it_imported_works_in_every_process_that_it_forks() -> None:
    assert started(FORKED) == "0\n0\n0\n"


def test_spark_sees_the_death_of_a_worker_whose_bolt_has_forked_a_process_that_lives_on() -> None:
    assert started(CHILDREN) == "b''\n"


def test_a_worker_does_not_outlive_the_process_that_reads_what_it_prints() -> None:
    assert started(ORPHAN) == "b'' True\n"


@pytest.mark.parametrize("end", ["return", "sys.exit(0)", "raise ValueError"])
def test_a_process_that_a_bolt_forks_does_not_go_on_as_a_bolt_task(end: str) -> None:
    assert started(RETURNS.replace("END", end)) == "1 executed, acked [1]"


def test_spark_s_own_loop_runs_behind_it_until_spark_closes_its_input() -> None:
    """Spark starts it like this: it writes the port that it listens on, and ends with its input."""
    command = [sys.executable, "-m", EVERYWHERE["spark.python.daemon.module"], "pyspark.worker"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON_WORKER_FACTORY_SECRET": "secret"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert len(done.stdout) == 4, "nothing else may be on its standard output"
    assert done.stderr == b""
