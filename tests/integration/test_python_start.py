"""Spark's Python processes import pyspark from its folder; what else starts with our folder on its path is left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_jobs.python_start import FOLDER

ROOT = Path(__file__).parents[2]
LIB = Path(pyspark.__file__).parent / "python" / "lib"
ARCHIVES = [str(LIB / "pyspark.zip"), *map(str, LIB.glob("py4j-*.zip"))]
WHERE = "import sys, pyspark; print(pyspark.__file__); print([each for each in sys.path if each.endswith('.zip')][:2])"
SPARK = """
import sys
from pathlib import Path

from spark_jobs.session import SparkUnit
from workers.config import use_this_python_for_spark

use_this_python_for_spark(Path.cwd())
found = sys.argv[1]


def where():
    import pyspark
    Path(found).write_text(pyspark.__file__)


spark = SparkUnit("where", "local[1]", {})
spark.on_each_worker(where)
spark.stop()
"""


def started(code, *folders, arguments=()):
    """What a Python process prints that has these in its PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=True)


def test_a_python_worker_of_spark_has_it_from_its_folder(tmp_path):
    found = tmp_path / "found"
    started(SPARK, arguments=[found])
    assert found.read_text() == pyspark.__file__


def test_the_archives_go_where_this_python_has_their_package():
    assert ".zip" in started(WHERE, *ARCHIVES).stdout.splitlines()[0], "else there is nothing to do any more"
    file, archives = started(WHERE, *ARCHIVES, FOLDER).stdout.splitlines()
    assert file == pyspark.__file__
    own = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    assert archives.count(".zip") == archives.count(own), "py4j's is gone too"


@pytest.mark.parametrize("folder", ["python/lib", "site/pyspark/python/lib"], ids=["Spark's own", "another Python's"])
def test_archives_of_other_installations_stay(tmp_path, folder):
    lib = tmp_path / folder
    lib.mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-0-src.zip"):
        (lib / name).write_bytes(Path(ARCHIVES[0]).read_bytes())
    found = started(WHERE, lib / "pyspark.zip", FOLDER).stdout.splitlines()[0]
    assert found.startswith(str(lib / "pyspark.zip"))


def test_a_sitecustomize_of_the_users_own_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    assert started("import sitecustomize", FOLDER, tmp_path).stdout == "mine\n"
    (tmp_path / "sitecustomize.py").write_text("import nowhere")
    assert "No module named 'nowhere'" in started("", FOLDER, tmp_path).stderr
    assert started("import sitecustomize", FOLDER).stderr == ""
