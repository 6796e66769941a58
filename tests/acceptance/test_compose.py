"""The compose file for real: up, publish, count, scale, kill, down.

Nothing is lost, and nothing is left behind.

The tests need a Docker engine. If there is none and none can be started, they are skipped, except
in CI, where they fail.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections import Counter
from itertools import repeat

import pytest

from tests.images.server_images import image_of, server_named
from tests.support.block_thief import stolen_from
from tests.support.broker import ready
from tests.support.docker_engine import docker_engine
from tests.support.stack_image import build_image, prometheus_image
from tests.support.stacks import CREDENTIALS, Stack, readable_folder
from tests.support.waiting import wait_until
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.state.encoding import decode_key, decode_value

pytestmark = [pytest.mark.promised, pytest.mark.timeout(1800)]

PARTS = 5
CALM = 1_000
UNDER_FAULTS = 12_000
WORKERS = ("driver", "spout")
SECRETS_OF = {
    "rabbitmq": {"cookie"},  # its users' passwords only as hashes
    "redis": {"redis"},
    "spark-master": {"spark"},
    "spark-worker": {"spark"},
    "driver": {"rabbitmq", "redis", "spark"},
    "spout": {"rabbitmq", "redis"},
    "monitor": {"rabbitmq", "redis", "management", "token"},
}
NETWORKS_OF = {
    "rabbitmq": {"data"},
    "redis": {"data"},
    "spark-master": {"data"},
    "spark-worker": {"data"},
    "driver": {"data"},
    "spout": {"data"},
    "monitor": {"data", "monitoring"},
    "prometheus": {"monitoring"},
}

# Two files, because modules that the topology's own module imports, even late, must reach the
# executors too.
TOPOLOGY = """
from tiercel import BasicBolt, Config, QueueSpout, StatefulBolt, TopologyBuilder


class Split(BasicBolt):
    output_fields = "part string"

    def execute(self, tup, collector):
        from parts import parts_of

        for part in parts_of(tup["line"]):
            collector.emit([part])


class Count(StatefulBolt):
    def execute(self, tup, collector):
        self.state.increment(tup["part"])


def topology():
    builder = TopologyBuilder("counted", Config(message_timeout_secs=60))
    builder.set_spout("lines", QueueSpout("lines", fields="line string"))
    builder.set_bolt("split", Split(), parallelism=4).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), parallelism=4).fields_grouping("split", "part")
    return builder.build()
"""
HELPER = f"""
def parts_of(line):
    return [f"{{line}}/{{part}}" for part in range({PARTS})]
"""


@pytest.fixture(scope="module")
def client():
    with docker_engine() as client:
        yield client


@pytest.fixture(scope="module")
def images(client) -> dict[str, str]:
    """Return the variables of the compose file that name images."""
    image, base = build_image(client)
    servers = {"RABBITMQ_IMAGE": "rabbitmq:4.3", "REDIS_IMAGE": "redis:8.0"}
    found = {variable: image_of(client, server_named(name)) for variable, name in servers.items()}
    return {"TIERCEL_IMAGE": image, "BASE_IMAGE": base, **found}


def counts(stack: Stack, topology: str, bolt: str) -> Counter:
    """Return the counts in the bolt's state."""
    redis = connect(stack.redis_url)
    entries = redis.hgetall(f"tiercel:{{{topology}:0}}:state:{bolt}")
    redis.close()
    return Counter({decode_key(field): decode_value(raw) for field, raw in entries.items()})


def totals(stack: Stack, topology: str, spout: str) -> Counter:
    metrics = RedisMetrics(stack.redis_url, topology)
    return sum((Counter(task) for task in metrics.totals().get(spout, {}).values()), Counter())


def publish(stack: Stack, queue: str, lines) -> None:
    declare_queue(stack.amqp_url, WorkQueue(name=queue))
    with Publisher(stack.amqp_url) as publisher:
        publisher.publish(queue, (line.encode() for line in lines))


def wait_until_acked(stack: Stack, topology: str, spout: str, total: int) -> None:
    """Wait for this many acked messages, with no fault: a killed worker loses its last second of
    counts.
    """
    wait_until(
        lambda: totals(stack, topology, spout)["acked"] == total, 600, f"{total} acked messages"
    )


def wait_until_nothing_is_left(stack: Stack, queue: str) -> None:
    """Wait until no message waits, is in flight, or is dead.

    The broker's figures are some seconds old, so check first that the work was done.
    """

    def left() -> dict[str, int]:
        found = json.loads(stack.tiercel("depths", queue, "--json"))
        [on_broker], [own] = found["queues"], found["topologies"]
        return {"pending": own["pending"]} | {
            name: on_broker[name] for name in ("ready", "unacked", "delayed", "dead_lettered")
        }

    # The ledger forgets a killed worker's registrations after four message timeouts.
    wait_until(lambda: not any(left().values()), 400, f"an empty {queue}")


def expected(numbers) -> set[str]:
    return {f"{number}/{part}" for number in numbers for part in range(PARTS)}


def test_a_topology_of_ones_own_is_scaled_and_loses_nothing_while_its_parts_are_killed(
    client, images, tmp_path
):
    folder = readable_folder(tmp_path, counted=TOPOLOGY, parts=HELPER)
    settings = {
        "TIERCEL_TOPOLOGY": "counted:topology",
        "TIERCEL_TOPOLOGY_DIR": folder,
        "SPARK_WORKER_CORES": "1",
    }
    with Stack(client, "docker compose", **images, **settings) as stack:
        stack.compose("--profile", "metrics", "config", "--quiet")
        # as users run it; here all layers are already built
        stack.compose("build", "driver", timeout=600)
        stack.up()
        stack.wait_until_healthy()
        assert_hardened(stack)
        assert_each_part_sees_its_own_secrets_only(stack)
        assert_each_part_is_in_its_own_networks_only(stack)

        publish(stack, "lines", map(str, range(CALM)))
        wait_until_acked(stack, "counted", "lines", CALM)
        wait_until_nothing_is_left(stack, "lines")
        assert counts(stack, "counted", "count") == Counter(expected(range(CALM))), (
            "with no fault each counts once"
        )
        assert_strangers_are_refused(stack)

        stack.up(spout=4, spark_worker=3)
        wait_until(
            lambda: (
                len(stack.containers("spout")) == 4 and len(stack.containers("spark-worker")) == 3
            )
        )
        stack.wait_until_healthy()
        executors = wait_until(
            lambda: (found := spark(stack)["activeapps"][0]["cores"]) == 3 and found,
            300,
            "three executors",
        )
        assert executors == 3

        numbers = range(CALM, CALM + UNDER_FAULTS)
        victims = stack.containers("spark-worker")[0], stack.containers("spout")[0]
        publish(stack, "lines", map(str, numbers))
        wait_until(
            lambda: totals(stack, "counted", "lines")["acked"] > CALM, 300, "the load to run"
        )
        stack.kill_inside(victims[0], "CoarseGrainedExecutorBackend")
        stack.kill_inside(victims[1], "tiercel")
        assert totals(stack, "counted", "lines")["acked"] < CALM + UNDER_FAULTS, (
            "the load was over before the faults"
        )
        wait_until(lambda: restarts(victims[1]) == 1, 300, "the spout's container to start again")
        wait_until(
            lambda: (
                counts(stack, "counted", "count").keys() >= expected(range(CALM + UNDER_FAULTS))
            ),
            600,
            "all counts",
        )
        wait_until_nothing_is_left(stack, "lines")
        found = counts(stack, "counted", "count")
        assert set(found) == expected(range(CALM + UNDER_FAULTS)), "nothing lost, nothing made up"
        repeated = sum(found.values()) - len(found)
        print(f"repeated: {repeated} of {len(found)} counts")  # noqa: T201 - a measurement
        stack.wait_until_healthy()

        assert_it_ends_as_ordered(stack)
        stack.compose("down", "--volumes")
        assert stack.leftovers() == []


@pytest.mark.slow
def test_the_older_command_starts_scales_and_ends_the_word_count_and_prometheus_scrapes_it(
    client, images
):
    settings = {"SPARK_WORKER_CORES": "1", "PROMETHEUS_IMAGE": prometheus_image(client)}
    with Stack(client, "docker-compose", **images, **settings) as stack:
        stack.up()
        stack.wait_until_healthy()
        publish(stack, "sentences", repeat("the falcon and the tiercel", 1_000))
        wait_until_acked(stack, "word-count", "sentences", 1_000)
        assert counts(stack, "word-count", "count") == Counter(
            the=2_000, falcon=1_000, tiercel=1_000, **{"and": 1_000}
        )
        stack.up(spout=2, spark_worker=2)
        wait_until(
            lambda: (
                len(stack.containers("spout")) == 2 and len(stack.containers("spark-worker")) == 2
            )
        )
        stack.wait_until_healthy()
        publish(stack, "sentences", repeat("the kestrel", 500))
        wait_until_acked(stack, "word-count", "sentences", 1_500)
        wait_until_nothing_is_left(stack, "sentences")
        assert counts(stack, "word-count", "count")["kestrel"] == 500
        stack.compose("--profile", "metrics", "config", "--quiet")
        stack.up("prometheus")
        wait_until(
            lambda: scraped(stack) == {"word-count"}, 300, "Prometheus to scrape the monitor"
        )
        stack.wait_until_healthy()
        assert_each_part_is_in_its_own_networks_only(stack)
        stack.compose("stop", *reversed(WORKERS))
        assert {
            container.attrs["State"]["ExitCode"]
            for name in WORKERS
            for container in stack.containers(name)
        } == {0}
        stack.compose("--profile", "metrics", "down", "--volumes")
        assert stack.leftovers() == []


def assert_hardened(stack: Stack) -> None:
    for container in stack.containers():
        host = container.attrs["HostConfig"]
        addresses = {
            each["HostIp"] for published in container.ports.values() for each in published or ()
        }
        assert addresses <= {"127.0.0.1"}, container.name
        assert host["Memory"] > 0, container.name
        assert host["NanoCpus"] > 0, container.name
        assert host["PidsLimit"] > 0, container.name
        if container.status == "running":
            assert container.exec_run(["id", "-u"]).output.strip() != b"0", container.name
        told = json.dumps(container.attrs)
        assert not [name for name, drawn in stack.drawn().items() if drawn in told], container.name


def assert_each_part_sees_its_own_secrets_only(stack: Stack) -> None:
    for service, owned in SECRETS_OF.items():
        container = stack.containers(service)[0]
        seen = container.exec_run(["sh", "-c", f"cat {CREDENTIALS}/*"]).output.decode()
        assert {name for name, drawn in stack.drawn().items() if drawn in seen} == owned, service
        assert container.exec_run(["sh", "-c", "touch /written 2>&1"]).exit_code != 0, service
        lines = container.exec_run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).output.decode(
            errors="replace"
        )
        assert not [name for name, drawn in stack.drawn().items() if drawn in lines], service


def assert_each_part_is_in_its_own_networks_only(stack: Stack) -> None:
    for container in stack.containers():
        service = container.labels["com.docker.compose.service"]
        if container.status == "running":
            found = {
                name.removeprefix(f"{stack.project}_")
                for name in container.attrs["NetworkSettings"]["Networks"]
            }
            assert found == NETWORKS_OF[service], service


def assert_strangers_are_refused(stack: Stack) -> None:
    """Check that Spark asks the host's users for the secret, and that the monitor's RabbitMQ user
    may only read.
    """
    masters = stack.containers("spark-master")[0].attrs["NetworkSettings"]["Networks"].values()
    for service in ("driver", "spark-worker"):
        networks = stack.containers(service)[0].attrs["NetworkSettings"]["Networks"].values()
        listening = [
            (each["IPAddress"], port) for each in networks for port in ports_inside(stack, service)
        ]
        assert listening, service
        assert not [place for place in listening if stolen_from(place[1], place[0])], service
    assert not [found for each in masters if (found := stolen_from(7077, each["IPAddress"]))]
    users = f"http://127.0.0.1:{stack.settings['RABBITMQ_MANAGEMENT_PORT']}/api/users"
    login = base64.b64encode(f"tiercel-monitor:{stack.drawn()['management']}".encode()).decode()
    with pytest.raises(urllib.error.HTTPError, match=r"401|403"):
        urllib.request.urlopen(
            urllib.request.Request(users, headers={"Authorization": f"Basic {login}"}), timeout=30
        )
    assert (
        json.loads(stack.tiercel("depths", "lines", "--json"))["queues"][0]["unacked"] is not None
    )
    assert (
        stack.containers("rabbitmq")[0]
        .exec_run(["cat", "/var/lib/rabbitmq/.erlang.cookie"])
        .output.decode()
        == (stack.drawn()["cookie"])
    )


def ports_inside(stack: Stack, service: str) -> set[int]:
    """Return the TCP ports on which the service's first container listens."""
    table = (
        stack.containers(service)[0]
        .exec_run(["sh", "-c", "cat /proc/net/tcp /proc/net/tcp6"])
        .output.decode()
    )
    rows = [row.split() for row in table.splitlines() if " 0A " in row]
    return {int(row[1].rpartition(":")[2], 16) for row in rows}


def assert_it_ends_as_ordered(stack: Stack) -> None:
    """``tiercel kill`` ends spouts and driver with 0, and Docker does not start them again."""
    stack.tiercel("kill", "counted", timeout=180)
    ended = wait_until(
        lambda: (
            (found := [each for name in WORKERS for each in stack.containers(name)])
            and all(each.status == "exited" for each in found)
            and found
        ),
        90,
        "the processes to end",
    )
    assert {container.attrs["State"]["ExitCode"] for container in ended} == {0}
    assert ready(stack.amqp_url, "lines") == 0


def restarts(container) -> int:
    container.reload()
    return container.attrs["RestartCount"] if container.status == "running" else 0


def scraped(stack: Stack) -> set[str]:
    """Return the topologies known to Prometheus."""
    try:
        found = asked(stack, "PROMETHEUS_PORT", "/api/v1/query?query=tiercel_topology_active")
    except OSError:
        return set()
    return {each["metric"]["topology"] for each in found["data"]["result"]}


def spark(stack: Stack) -> dict:
    """Return the report of Spark's master."""
    return asked(stack, "SPARK_UI_PORT", "/json/")


def asked(stack: Stack, port: str, path: str) -> dict:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{stack.settings[port]}{path}", timeout=30
    ) as answer:
        return json.loads(answer.read())
