"""``tiercel run`` with a user's commands: private servers, publishing from another terminal, and
Ctrl-C.
"""

import json
import signal

import pytest

from tests.support.runs import SHOUT, Desk
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def desk(tmp_path) -> Desk:
    desk = Desk(tmp_path)
    desk.write("shout.py", SHOUT)
    return desk


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.quick),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
        pytest.param(None, id="tiercel kill"),
    ],
)
def test_it_processes_what_another_terminal_publishes_and_ends_cleanly(desk, number):
    desk.write("text", "one\ntwo\n\nthree\n")
    (desk.folder / "bad").write_bytes(b"\xff\n")
    of_spark = desk.folder / "spark"
    of_spark.mkdir()
    desk.variables["SPARK_LOCAL_DIRS"] = str(of_spark)
    with desk.run("shout:topology") as process:
        published = desk.tiercel("publish", "lines", "text")
        assert "published 3 messages" in published.stdout
        assert (
            f"tiercel: on the private servers of the run of shout (process {process.pid})\n"
            in published.stderr
        )
        wait_until(lambda: desk.log.count("heard ") == 3, 300, "three lines to be heard")
        desk.tiercel("publish", "lines", "bad")
        wait_until(
            lambda: "UTF-8" in desk.tiercel("dead-letters", "show", "lines").stdout,
            30,
            "a dead letter",
        )
        assert "lines" in desk.tiercel("depths").stdout
        assert (
            "put 1 message back"
            in desk.tiercel("dead-letters", "requeue", "lines", "--all", "--yes").stdout
        )
        if number is None:
            assert "shout has ended" in desk.tiercel("kill", "shout").stdout
        else:
            process.send_signal(number)
        assert process.wait(120) == 0
    desk.assert_nothing_is_left()
    assert not [*of_spark.iterdir()], "Java had no time to remove its files"
    records = [json.loads(line) for line in desk.log.splitlines()]
    assert {"services_ready", "data_ends", "run_started", "spark_output"} <= {
        record["event"] for record in records
    }
    assert not [record for record in records if record["level"] == "error"]
