"""The test kit on Spark in a user's project, and its message when something is missing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(sys.executable)

HELPERS = """
from dataclasses import dataclass


@dataclass
class Mood:
    loud: bool = True


def shout(word, mood):
    return word.upper() if mood.loud else word
"""

TESTS = """
import threading
import time
from datetime import UTC, datetime, timedelta

import helpers
import pytest
from helpers import Mood
from tiercel import BasicBolt, Bolt, TopologyBuilder, WindowedBolt, tumbling
from tiercel.testing import FeederSpout, complete_topology

ENDING = "!"


def ended(word):
    return word + ENDING


class Shout(BasicBolt):
    output_fields = "word string"

    def __init__(self):
        self.mood = Mood()

    def execute(self, tup, collector):
        collector.emit([ended(helpers.shout(tup["word"], self.mood))])


class Seen:
    def __init__(self, word):
        self.word = word


class Keep(Bolt):
    output_fields = "seen string"

    def __init__(self):
        self.seen = []

    def execute(self, tup, collector):
        self.seen.append(Seen(tup["word"]))
        collector.emit([" ".join(seen.word for seen in self.seen)], tup)
        collector.ack(tup)


def topology(*more):
    feeder = FeederSpout(fields="word string")
    builder = TopologyBuilder("shouting")
    builder.set_spout("words", feeder)
    builder.set_bolt("shout", Shout()).shuffle_grouping("words")
    builder.set_bolt("keep", Keep()).shuffle_grouping("shout")
    for bolt in more:
        builder.set_bolt("more", bolt).shuffle_grouping("shout")
    return builder.build(), feeder


def test_bolts_of_a_test_module_and_of_a_test(local_cluster):
    class Local(BasicBolt):
        output_fields = "word string"

        def execute(self, tup, collector):
            collector.emit([ended(tup["word"])])

    both, feeder = topology(Local())
    cluster = local_cluster(both)
    for number, word in enumerate(["a", "b"]):
        feeder.feed([word], number)
        cluster.run_until_idle()
    assert cluster.acked("words") == [0, 1]
    assert cluster.read_tuples("keep") == [["A!"], ["A! B!"]]
    assert cluster.read_tuples("more") == [["A!!"], ["B!!"]]


def test_a_complete_topology():
    emitted = complete_topology(topology()[0], {"words": [["a"]]}, engine="spark")
    assert emitted["shout"] == [["A!"]]


class Connected(Shout):
    def __init__(self):
        self.mood = threading.Lock()


def test_a_bolt_that_cannot_travel_is_named():
    said = "^bolt 'more' cannot travel to Spark, because of .*'mood': .*_thread.lock.*prepare"
    with pytest.raises(Exception, match=said):
        complete_topology(topology(Connected())[0], {"words": [["a"]]}, engine="spark")


class Number(WindowedBolt):
    window = tumbling(timedelta(seconds=1))
    timestamp_field = "at"
    idle = timedelta(seconds=2)
    output_fields = "number long"

    def execute(self, window, collector):
        collector.emit([len(window)])


def test_a_window_closes_when_its_source_is_idle(local_cluster):
    feeder = FeederSpout(fields="at timestamp")
    builder = TopologyBuilder("numbers")
    builder.set_spout("times", feeder)
    builder.set_bolt("number", Number()).shuffle_grouping("times")
    cluster = local_cluster(builder.build())
    feeder.feed([datetime(2026, 1, 1, tzinfo=UTC)], 0)
    until = time.monotonic() + 90
    while not cluster.acked("times") and time.monotonic() < until:
        cluster.run_until_idle()
        time.sleep(0.5)
    assert cluster.read_tuples("number") == [[1]]
"""


def run_pytest(folder, *options, path=None):
    arguments = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    # Spark's workers must find everything by themselves: PYTHONPATH is empty, and python3 is
    # another one.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYSPARK_PYTHON")
    }
    environment["PATH"] = path if path is not None else "/usr/bin:/bin"
    return subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.parametrize("mode", ["prepend", pytest.param("importlib", marks=pytest.mark.slow)])
def test_bolts_work_on_spark_wherever_pytest_found_them(tmp_path, mode):
    tests = tmp_path / "checks" / "unit"
    tests.mkdir(parents=True)
    (tests / "test_shout.py").write_text(TESTS)
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["."]\nfilterwarnings = ["error"]\n'
    )
    done = run_pytest(tmp_path, "--tiercel-engine=spark", f"--import-mode={mode}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


MISSING = """
from tiercel.testing import FeederSpout, LocalCluster
from tiercel import BasicBolt, TopologyBuilder

def test(local_cluster):
    builder = TopologyBuilder("t")
    builder.set_spout("s", FeederSpout(fields="x long"))
    builder.set_bolt("b", BasicBolt()).shuffle_grouping("s")
    local_cluster(builder.build(), {options})
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "",
            (
                "SparkUnavailableError: Spark needs Java 17 or newer: apt-get install "
                "openjdk-17-jre-headless"
            ),
        ),
        (
            "redis_url='redis://127.0.0.1:1/0'",
            "RedisUnavailableError: cannot run on Redis: Redis does not answer",
        ),
        (
            "redis_url='localhost'",
            "RedisRefusedError: malformed Redis URL; it should look like redis://",
        ),
    ],
    ids=["no Java", "no Redis there", "no URL"],
)
def test_what_is_missing_is_said_in_one_line(tmp_path, options, said):
    (tmp_path / "test_missing.py").write_text(MISSING.replace("{options}", options))
    done = run_pytest(tmp_path, "--tiercel-engine=spark", path=str(tmp_path))
    assert done.returncode == 1
    assert re.search(rf"^E +[a-z_.]*{re.escape(said)}", done.stdout, re.MULTILINE), done.stdout
