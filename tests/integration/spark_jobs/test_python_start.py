"""Spark's Python processes are forked from one that has imported everything, with pyspark unpacked,
and are called on a socket in their own folder.
"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[3]
# Longer than the path of a unix socket may be, like a YARN container's folder.
LONG = "/".join(["a-folder-of-a-container"] * 5)
SPARK = """
import json
import os
import sys
from pathlib import Path

from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.workers.config import use_this_python_for_spark

use_this_python_for_spark(Path.cwd())
_, found, master, options = sys.argv


def where(_):
    import pyspark
    main = sys.modules["__main__"]
    folder = os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"]
    said = [pyspark.__file__, main.__spec__.name, folder, os.stat(folder).st_mode]
    Path(found).write_text(json.dumps(said))


with SparkUnit("where", master, json.loads(options)) as spark:
    spark.context.parallelize([0], 1).foreach(where)
"""


def found_by(tmp_path: Path, master: str, options: dict[str, str]) -> tuple[str, str, Path, int]:
    found = tmp_path / "found"
    command = [sys.executable, "-c", SPARK, str(found), master, json.dumps(options)]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    package, main, folder, mode = json.loads(found.read_text())
    return package, main, Path(folder), stat.S_IMODE(mode)


def test_a_python_worker_of_spark_has_everything_from_the_process_that_forked_it(tmp_path):
    package, main, folder, mode = found_by(tmp_path, "local[1]", {})
    assert (package, main) == (pyspark.__file__, "tiercel.spark_jobs.spark.python_daemon")
    assert mode == 0o700
    assert not folder.exists(), "it ends with Spark"


def test_an_executor_whose_folder_is_longer_than_a_socket_path_runs_python(tmp_path):
    container = tmp_path / LONG
    container.mkdir(parents=True)
    assert len(os.fsencode(container)) > 108
    options = {"spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={container}"}
    _, _, folder, mode = found_by(tmp_path, "local-cluster[1,1,1024]", options)
    assert (folder.parent, mode) == (Path("/tmp"), 0o700)


@pytest.mark.parametrize("length", [pytest.param(20, marks=pytest.mark.slow), 61])
def test_a_folder_that_the_user_sets_holds_the_socket(tmp_path, length):
    mine = Path(f"/tmp/{os.getpid()}-".ljust(length, "s"))
    mine.mkdir()
    try:
        options = {"spark.python.unix.domain.socket.dir": str(mine)}
        _, _, folder, _ = found_by(tmp_path, "local-cluster[1,1,1024]", options)
        assert mine in (folder, folder.parent)
    finally:
        mine.rmdir()
