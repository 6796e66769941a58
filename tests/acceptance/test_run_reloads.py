"""``tiercel run --reload``: when the files change, the topology runs the new code."""

import json
import signal
from contextlib import closing

import pytest

from tests.support.runs import Desk
from tests.support.waiting import wait_until
from tiercel.acker.metrics.redis import RedisMetrics

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

TOPOLOGY = """
from helpers import say
from tiercel import Bolt, Config, QueueSpout, TopologyBuilder


class Holds(Bolt):
    def execute(self, tup, collector):
        say("held", tup)


class Says(Bolt):
    def execute(self, tup, collector):
        say("said", tup)
        collector.ack(tup)


def topology():
    builder = TopologyBuilder("shout", Config(message_timeout_secs=300))
    builder.set_spout("lines", QueueSpout("lines", fields="line string"))
    builder.set_bolt("shout", BOLT()).shuffle_grouping("lines")
    return builder.build()
"""
HELPERS = """
def say(word, tup):
    print(word, "by PERSON", tup["line"], flush=True)
"""


def with_bolt(name: str) -> str:
    return TOPOLOGY.replace("BOLT", name)


def with_person(name: str) -> str:
    return HELPERS.replace("PERSON", name)


def outcomes(desk: Desk) -> dict[str, int]:
    """Return the outcomes of the spout's messages so far."""
    [note] = (desk.folder / "runtime").glob("*/run-*.json")
    with closing(RedisMetrics(json.loads(note.read_text())["redis"], "shout")) as metrics:
        tasks = metrics.totals()["lines"].values()
        return {
            name: sum(task.get(name, 0) for task in tasks)
            for name in ("acked", "failed", "timeout", "released")
        }


def test_other_code_runs_and_what_was_in_flight_comes_again_without_blame(tmp_path):
    desk = Desk(tmp_path)
    desk.write("helpers.py", with_person("Ada"))
    desk.write("shout.py", with_bolt("Holds"))
    desk.write("three", "one\ntwo\nthree\n")
    desk.write("one", "four\n")
    with desk.run("shout:topology", "--reload") as process:
        desk.tiercel("publish", "lines", "three")
        # A spout begins with two in flight, and none has been acked yet.
        wait_until(lambda: desk.log.count("held by Ada") == 2, 60, "two messages in flight")

        desk.write("shout.py", with_bolt("Says"))
        wait_until(lambda: desk.log.count("said by Ada") == 3, 120, "the new bolt")
        assert "shout.py changed" in desk.events("code_reloaded")[-1]["message"]
        wait_until(lambda: outcomes(desk)["acked"] == 3, 30, "three acks")
        found = outcomes(desk)
        assert (found["failed"], found["timeout"]) == (0, 0)
        assert found["released"] >= 2
        assert "lines has no dead letters" in desk.tiercel("dead-letters", "show", "lines").stdout

        desk.write("helpers.py", "def say(word, tup:\n")
        wait_until(lambda: desk.events("code_refused"), 60, "the error to be said")
        [refused] = desk.events("code_refused")
        assert "SyntaxError" in refused["message"]
        assert "helpers.py" in refused["message"]
        assert "the old code keeps running" in refused["message"]
        assert "\n" not in refused["message"]
        desk.tiercel("publish", "lines", "one")
        wait_until(lambda: desk.log.count("said by Ada") == 4, 60, "the old code to go on")

        desk.write("helpers.py", with_person("Bob"))
        wait_until(lambda: len(desk.events("code_reloaded")) == 2, 60, "the mended code")
        desk.tiercel("publish", "lines", "one")
        wait_until(lambda: desk.log.count("said by Bob") == 1, 120, "the mended code to run")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    desk.assert_nothing_is_left()
    assert not [line for line in desk.log.splitlines() if '"level": "error"' in line]
