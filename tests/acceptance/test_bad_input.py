"""Each mistake of a user gives one line that says what to do, exit code 2, no traceback and no
password.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOWHERE = "amqp://guest:secret@127.0.0.1:1"

TOPOLOGIES = """
from tiercel import BasicBolt, QueueSpout, TopologyBuilder


class Words(BasicBolt):
    output_fields = "word string"


def builder():
    builder = TopologyBuilder("bad-input")
    builder.set_spout("lines", QueueSpout("bad-input", fields="line string"))
    return builder


def good():
    one = builder()
    one.set_bolt("words", Words()).shuffle_grouping("lines")
    return one.build()


def component():
    one = builder()
    one.set_bolt("words", Words()).shuffle_grouping("nobody")
    return one.build()


def stream():
    one = builder()
    one.set_bolt("words", Words()).shuffle_grouping("lines", stream="errors")
    return one.build()


def field():
    one = builder()
    one.set_bolt("words", Words()).fields_grouping("lines", "word")
    return one.build()


def raises():
    raise RuntimeError("no luck")


number = 7
"""


@pytest.fixture
def tiercel(tmp_path):
    """Return a function that runs the command in a folder with the topologies above.

    It returns the exit code and stderr.
    """
    (tmp_path / "topologies.py").write_text(TOPOLOGIES)

    def run(*arguments, **environment):
        finished = subprocess.run(
            [sys.executable, "-m", "tiercel", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return finished.returncode, finished.stderr

    return run


def assert_refused(outcome, *said):
    code, errors = outcome
    lines = [line for line in errors.splitlines() if line.startswith("tiercel: ")]
    assert code == 2, errors
    assert len(lines) == 1, errors
    for words in said:
        assert words in lines[0]
    assert "Traceback" not in errors
    assert "secret" not in errors


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("topologies", "write MODULE:ATTRIBUTE"),
        ("nowhere:topology", "there is no module 'nowhere'"),
        ("topologies:nothing", "has no attribute 'nothing'"),
        ("topologies:number", "not a topology"),
        ("topologies:raises", "no luck"),
        ("topologies:component", "'nobody', which is not in the topology"),
        ("topologies:stream", "its streams are default"),
        ("topologies:field", "there is no field 'word'"),
    ],
)
def test_a_topology_that_cannot_run(tiercel, name, said):
    assert_refused(tiercel("run", name), said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "topologies:good", "--amqp", "http://host"], "--amqp: must look like amqp://"),
        (["run", "topologies:good", "--amqp", NOWHERE], "give --redis"),
        (["run", "topologies:good", "--master", "mesos"], "--master: must look like local"),
        (["driver", "topologies:good"], "Give --redis or set TIERCEL_REDIS"),
        (
            ["publish", "queue", "topologies.py", "--amqp", NOWHERE],
            "nothing listens at amqp://guest@127.0.0.1:1",
        ),
        (["publish", "queue", "missing.txt", "--amqp", NOWHERE], "cannot read missing.txt"),
        (["depths", "queue", "--amqp", NOWHERE], "start RabbitMQ or correct the AMQP URL"),
        (
            ["dead-letters", "show", "queue", "--amqp", NOWHERE],
            "start RabbitMQ or correct the AMQP URL",
        ),
        (["kill", "topology"], "Give --redis or set TIERCEL_REDIS"),
        (
            ["deactivate", "topology", "--redis", "redis://:secret@127.0.0.1:1"],
            "Redis does not answer",
        ),
    ],
    ids=" ".join,
)
def test_an_address_that_is_wrong_or_missing(tiercel, arguments, said, tmp_path):
    # Keep the command from finding private servers of another run.
    assert_refused(tiercel(*arguments, XDG_RUNTIME_DIR=str(tmp_path)), said)


def test_a_spout_that_the_topology_does_not_have(tiercel, amqp_url, redis_url):
    servers = {"TIERCEL_AMQP": amqp_url, "TIERCEL_REDIS": redis_url}
    assert_refused(tiercel("spout", "topologies:good", "nobody", **servers), "its spouts are lines")
    assert_refused(
        tiercel("spout", "topologies:good", "lines", "--task-index", "3", **servers), "tasks 0 to 0"
    )


@pytest.mark.parametrize("command", ["activate", "deactivate", "kill"])
def test_a_topology_that_has_not_run(tiercel, redis_url, command):
    assert_refused(
        tiercel(command, "nobody", TIERCEL_REDIS=redis_url), "there is no topology 'nobody'"
    )


def wrong_password(url):
    head, _, host = url.rpartition("@")
    return f"{head.rpartition(':')[0]}:secret@{host}"


@pytest.mark.quick
def test_a_login_that_rabbitmq_refuses(tiercel, amqp_url, redis_url):
    servers = {"TIERCEL_AMQP": wrong_password(amqp_url), "TIERCEL_REDIS": redis_url}
    assert_refused(tiercel("spout", "topologies:good", "lines", **servers), "password")
    assert_refused(tiercel("depths", "queue", **servers), "password")


def test_a_login_that_redis_refuses(tiercel, amqp_url, redis_url):
    servers = {"TIERCEL_AMQP": amqp_url, "TIERCEL_REDIS": wrong_password(redis_url)}
    assert_refused(tiercel("spout", "topologies:good", "lines", **servers), "password")
    assert_refused(tiercel("driver", "topologies:good", **servers), "password")


def test_a_machine_without_java(tiercel, redis_url, tmp_path):
    assert_refused(
        tiercel("driver", "topologies:good", TIERCEL_REDIS=redis_url, PATH=str(tmp_path)),
        "Java 17",
        "openjdk-17-jre-headless",
    )


def test_a_queue_that_is_not_there(tiercel, amqp_url):
    assert_refused(
        tiercel("depths", "no-such-queue", TIERCEL_AMQP=amqp_url),
        "there is no queue 'no-such-queue'",
    )


def test_a_message_above_the_limit_is_refused_with_its_size(tiercel, amqp_url, tmp_path):
    size = 16 * 1024 * 1024 + 1
    (tmp_path / "large").write_bytes(b"x" * size)
    assert_refused(
        tiercel("publish", "bad-input", "--whole", "large", TIERCEL_AMQP=amqp_url), f"{size}"
    )
