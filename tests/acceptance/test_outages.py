"""The parts of a run are killed in turn, or its servers are down: it goes on by itself, loses
nothing, and each process logs one line when an outage begins and one when it ends.
"""

import json
import os
import signal
import time
from collections import Counter

import pytest

from tests.support.children import below, spark_jvms
from tests.support.runs import SHOUT, Desk
from tests.support.waiting import wait_until
from tiercel.acker.redis.clients import connect

pytestmark = pytest.mark.timeout(900)

# The promise is 20 s on an idle machine; on a busy one RabbitMQ alone takes longer to start.
WITHIN_S = 120.0


@pytest.fixture
def desk(tmp_path) -> Desk:
    desk = Desk(tmp_path)
    desk.write("shout.py", SHOUT)
    return desk


class Lines:
    """Messages that are published in parts, each of which must arrive."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.published = 0

    def publish(self, count: int = 50) -> None:
        numbers = range(self.published, self.published + count)
        self.published += count
        self.desk.write("part", "".join(f"line {number}\n" for number in numbers))
        self.desk.tiercel("publish", "lines", "part")

    def wait(self, within_s: float = 120.0) -> None:
        wait_until(self._all_are_heard, within_s, f"all of {self.published} lines")

    def _all_are_heard(self) -> bool:
        heard = set()
        for line in self.desk.log.splitlines():
            message = json.loads(line)["message"] if line.startswith("{") else line
            if message.startswith("heard line "):
                heard.add(int(message.split()[2]))
        return heard == set(range(self.published))


def kill(pid: int) -> float:
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def outlast(seconds: float) -> None:
    """Let an outage last for this long."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 60, "time to pass")


def no_traceback_and_only_json(desk: Desk) -> None:
    lines = desk.log.splitlines()
    assert not [line for line in lines if not line.startswith("{")]
    assert not [line for line in lines if "Traceback" in line]


def test_each_part_of_a_run_that_is_killed_is_back_by_itself_and_nothing_is_lost(desk):
    with desk.run("shout:topology", "--keep", "data") as process:
        lines = Lines(desk)
        lines.publish()
        lines.wait()

        def first(command: bytes) -> int:
            # A process's guard has the same command line, and a higher pid.
            return below(process.pid, command)[0]

        for victim, find, begins, ends in (
            ("Redis", lambda: first(b"redis-server"), "service_died", "service_back"),
            ("RabbitMQ", lambda: first(b"beam.smp"), "service_died", "service_back"),
            ("JVM", lambda: spark_jvms(process.pid)[0], "spark_ended", "run_started"),
            ("driver", lambda: first(b"driver\0shout:"), "child_died", "child_started"),
            ("spout", lambda: first(b"spout\0shout:"), "child_died", "child_started"),
        ):
            before = Counter(record["event"] for record in desk.events(begins, ends))
            killed = kill(find())
            wait_until(
                lambda before=before, ends=ends: len(desk.events(ends)) > before[ends],
                60,
                f"{victim} to be back",
            )
            back_s = time.monotonic() - killed
            lines.publish()
            lines.wait(WITHIN_S)
            assert back_s < WITHIN_S, f"{victim} is back after {back_s:.1f} s"
            assert len(desk.events(begins)) == before[begins] + 1, victim
        no_traceback_and_only_json(desk)
        # Redis with --keep may lose its last second, so messages may be redelivered; none fails.
        assert "dead" not in {record.get("event") for record in desk.events("dead_lettered")}
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert desk.events("stopped")[-1]["message"] == "shout has stopped"
    desk.assert_nothing_is_left()


def by_process(desk: Desk, event: str) -> Counter[str]:
    """Return the number of lines per process named in them."""
    return Counter(
        record["message"].rpartition("; ")[2].removesuffix(" goes on").partition(" waits for ")[0]
        for record in desk.events(event)
        if record["level"] != "debug"
    )


@pytest.fixture
def given(desk, rabbitmq, redis):
    """Start the run on the test's own servers."""
    broker, store = rabbitmq(), redis()
    desk.variables |= {"TIERCEL_AMQP": broker.url, "TIERCEL_REDIS": store.url}
    return broker, store


@pytest.mark.slow
def test_an_outage_of_each_server_is_two_lines_per_process(desk, given):
    broker, store = given
    with desk.run("shout:topology") as process:
        lines = Lines(desk)
        lines.publish()
        lines.wait()

        store.stop()
        wait_until(lambda: len(by_process(desk, "redis_away")) >= 3, 60, "each process to say so")
        outlast(8)
        store.start()
        lines.publish()
        lines.wait()
        wait_until(lambda: len(by_process(desk, "redis_back")) >= 3, 60, "each to say it is back")
        away, back = by_process(desk, "redis_away"), by_process(desk, "redis_back")
        assert set(away.values()) == {1}, away
        assert away == back
        assert {"the driver", "spout worker lines-0"} < set(away)
        assert [name for name in away if name.endswith(" of the bolts")]

        broker.stop()
        wait_until(lambda: desk.events("broker_lost"), 60, "it to be said")
        outlast(8)
        broker.start()
        lines.publish()
        lines.wait()
        expected = Counter({"spout worker lines-0": 1})
        assert by_process(desk, "broker_lost") == by_process(desk, "broker_back") == expected
        no_traceback_and_only_json(desk)
        assert not desk.events("driver_missing")[1:], "Redis was away, not the driver"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


@pytest.mark.embedded
@pytest.mark.slow
def test_a_password_that_is_changed_and_changed_back_is_waited_for(desk, given):
    _, store = given
    with desk.run("shout:topology") as process:
        lines = Lines(desk)
        lines.publish()
        lines.wait()
        with connect(store.url) as admin:
            password = admin.connection_pool.connection_kwargs["password"]
            admin.config_set("requirepass", "another")
            # Open connections stay open, so they are cut.
            admin.client_kill_filter(_type="normal", skipme=True)
            wait_until(
                lambda: len(by_process(desk, "redis_away")) >= 3, 60, "each process to say so"
            )
            outlast(15)
            assert process.poll() is None
            admin.config_set("requirepass", password)
        lines.publish()
        lines.wait()
        away = by_process(desk, "redis_away")
        # The connections broke before logins were refused.
        assert set(away.values()) <= {1, 2}, away
        assert by_process(desk, "redis_back") == Counter(set(away))
        refused = [
            record["message"]
            for record in desk.events("redis_away")
            if "it was accepted before, so this is retried for 10 min" in record["message"]
        ]
        assert len(refused) == len(away), refused
        assert not desk.events("bolt_task_failed", "bolt_task_refused", "child_died")
        no_traceback_and_only_json(desk)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


def test_a_wrong_password_is_one_line(desk, given):
    _, store = given
    desk.variables["TIERCEL_REDIS"] = store.url.replace("redis://:", "redis://:wrong-")
    ended = desk.tiercel("run", "shout:topology", code=2)
    said = [line for line in ended.stderr.splitlines() if "refuses" in line]
    assert len(said) == 1, ended.stderr
    assert "wrong-" not in ended.stderr


def test_an_alarm_of_rabbitmq_is_one_line_and_its_end_another(desk, given):
    broker, _ = given
    desk.variables["TIERCEL_MANAGEMENT"] = broker.management_url
    with desk.run("shout:topology") as process:
        for limit, event in (("2000GB", "broker_lost"), ("50MB", "broker_back")):
            broker.control("set_disk_free_limit", limit)
            wait_until(lambda event=event: desk.events(event), 60, event)
        outlast(11)  # one more look
        [began] = desk.events("broker_lost")
        [ended] = desk.events("broker_back")
        assert "has a disk alarm: nothing can be published until it has room" in began["message"]
        assert began["level"] == "warning"
        assert "is over" in ended["message"]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
