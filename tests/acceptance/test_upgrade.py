"""docs/upgrades.md: a topology is replaced by another version of itself under load, and no message
is lost or done twice.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.load import Load
from tests.support.waiting import wait_until
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.broker.depths import depths
from tiercel.queues.errors import QueuesError
from tiercel.workers.cli.app import app
from tiercel.workers.config import Settings
from tiercel.workers.control.presence import SpoutSeats
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.processes import Child

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

NAME = QUEUE = "upgraded"
RATE = 200
_TOPOLOGY = '''
import os
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder


class Label(BasicBolt):
    """Stands in the second version between the spout and the last bolt."""

    output_fields = "label string, number long"

    def execute(self, tup, collector):
        collector.emit([f"number {tup['number']}", tup["number"]])


class Record(BasicBolt):
    def prepare(self, config, context):
        self.lines = []

    def execute(self, tup, collector):
        self.lines.append(f"{tup['number']} {VERSION} {list(tup.fields)}\\n")

    def flush(self, collector):
        with (Path(os.environ["TIERCEL_TEST_EFFECTS"]) / str(os.getpid())).open("a") as file:
            file.writelines(self.lines)
        self.lines.clear()


def topology():
    builder = TopologyBuilder("upgraded", Config(message_timeout_secs=15, shutdown_grace_secs=5))
    spout = QueueSpout("upgraded", fields="number long", format="json")
    builder.set_spout("numbers", spout, parallelism=2)
    if VERSION == 2:
        builder.set_bolt("label", Label(), parallelism=2).shuffle_grouping("numbers")
    last = "label" if VERSION == 2 else "numbers"
    builder.set_bolt("record", Record(), parallelism=2).fields_grouping(last, "number")
    return builder.build()
'''


class Deployment:
    """The processes of the topology, each of one of the versions."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self.effects = folder / "effects"
        self.effects.mkdir()
        for version in (1, 2):
            (folder / str(version)).mkdir()
            (folder / str(version) / "upgraded.py").write_text(f"VERSION = {version}\n{_TOPOLOGY}")
        self._children: dict[str, Child] = {}

    def start(self, name: str, version: int) -> None:
        arguments = ["driver", f"{NAME}:topology"]
        if name != "driver":
            arguments = ["spout", f"{NAME}:topology", "numbers", "--task-index", name]
        place = str(self._folder / str(version))
        environment = {
            **self._settings.as_environment(), "PYTHONPATH": f"{place}:{Path.cwd()}",
            "TIERCEL_TEST_EFFECTS": str(self.effects),
        }  # fmt: skip
        # `python -m` would search the current folder first for the topology.
        argv = [
            sys.executable,
            "-c",
            "from tiercel.workers.cli.app import main; main()",
            *arguments,
        ]
        self._children[name] = Child(f"{name} of version {version}", argv, environment)
        self._children[name].start()

    def replace(self, name: str, version: int) -> None:
        self._children.pop(name).stop(timedelta(seconds=30))
        self.start(name, version)

    def stop(self) -> None:
        for child in self._children.values():
            child.stop(timedelta(seconds=15))

    def done(self) -> Counter[tuple[int, str]]:
        """Return (number, version and fields) of every effect."""
        lines = [line for path in self.effects.iterdir() for line in path.read_text().splitlines()]
        return Counter(
            (int(number), rest) for number, _, rest in (line.partition(" ") for line in lines)
        )


def told(settings: Settings, *command: str) -> str:
    answer = CliRunner().invoke(app, [*command, "--redis", settings.redis or ""])
    assert answer.exit_code == 0, answer.output
    return answer.output


@contextmanager
def deployed(folder: Path, settings: Settings) -> Iterator[Deployment]:
    with ExitStack() as exits:
        deployment = Deployment(folder, settings)
        exits.callback(deployment.stop)
        for name in ("driver", "0", "1"):
            deployment.start(name, 1)
        yield deployment


def test_another_version_takes_over_without_a_loss_or_a_repetition(
    tmp_path, rabbitmq, redis
) -> None:
    broker = rabbitmq()
    server = redis()
    settings = Settings.load(master="local[2]").with_services(
        broker.url, server.url, broker.management_url
    )
    # Declared here because the spouts do so only a moment after they report their presence.
    declare_queue(broker.url, WorkQueue(name=QUEUE))
    with (
        deployed(tmp_path, settings) as deployment,
        closing(SpoutSeats(RedisPresences(server.url, NAME))) as spouts,
    ):

        def there() -> int:
            return len(spouts.present(range(1, 3)))

        wait_until(lambda: there() == 2, 300, "the spout workers")
        with Load(broker.url, QUEUE, RATE, 0) as load:
            wait_until(deployment.done, 240, "the first version to work")
            told(settings, "deactivate", NAME)
            wait_until(
                lambda: sum(one.pending for one in spouts.present(range(1, 3)).values()) == 0,
                300,
                "what is in flight",
            )
            for name in ("0", "1", "driver"):
                deployment.replace(name, 2)
            wait_until(lambda: there() == 2, 300, "the new spout workers")
            told(settings, "activate", NAME)
            wait_until(
                lambda: any("2 " in rest for _, rest in deployment.done()),
                240,
                "the second version to work",
            )
        published = set(load.published)
        wait_until(
            lambda: {number for number, _ in deployment.done()} == published,
            240,
            "every message to be processed",
        )
        wait_until(lambda: at_rest(broker), 300, "an empty queue")
        done = deployment.done()
    assert {rest for _, rest in done} == {"1 ['number']", "2 ['label', 'number']"}
    assert sum(done.values()) == len(published), "no message was processed twice"


def at_rest(broker) -> bool:
    try:
        depth = depths(broker.url, [QUEUE], broker.management_url)[0]
    except QueuesError:
        return False
    assert not depth.dead_lettered
    return not (depth.ready or depth.unacked or depth.delayed)
