"""A project of ``tiercel new`` passes a strict type checker, and its compose file runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.server_images import image_of, server_named
from tests.support.broker import ready, take_all
from tests.support.docker_cli import compose_command, docker_environment, run
from tests.support.docker_engine import docker_engine
from tests.support.stack_image import build_image
from tests.support.stacks import Stack
from tests.support.waiting import wait_until
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.workers.cli.first_look import write_project

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in a folder that a container's user can read."""
    folder = tmp_path / "my-project"
    write_project(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture
def client() -> Iterator:
    with docker_engine() as client:
        yield client


@pytest.mark.parametrize(
    "words",
    [
        ["mypy", "--strict"],
        ["ruff", "check", "--isolated"],
        ["ruff", "format", "--isolated", "--check"],
    ],
)
def test_checkers_with_their_defaults_have_nothing_against_it(project, words):
    command = [sys.executable, "-m", *words, "."]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_its_compose_file_is_one_and_needs_no_variable(client, project):
    words = [*compose_command("docker compose"), "-f", str(project / "docker-compose.yml")]
    kept = {name: value for name, value in docker_environment().items() if "TIERCEL" not in name}
    services = run(*words, "config", "--services", env=kept).split()
    assert set(services) == {
        "credentials",
        "driver",
        "monitor",
        "rabbitmq",
        "redis",
        "spark-master",
        "spark-worker",
        "spout",
    }


@pytest.mark.slow
def test_it_runs_in_containers_as_it_is(client, project):
    servers = {"RABBITMQ_IMAGE": "rabbitmq:4.3", "REDIS_IMAGE": "redis:8.0"}
    images = {variable: image_of(client, server_named(name)) for variable, name in servers.items()}
    images["TIERCEL_IMAGE"], _ = build_image(client)
    file = project / "docker-compose.yml"
    with Stack(client, "docker compose", file=file, **images) as stack:
        stack.up()
        stack.wait_until_healthy()
        declare_queue(stack.amqp_url, WorkQueue(name="invoices"))
        with Publisher(stack.amqp_url) as publisher:
            lines = (project / "orders.jsonl").read_bytes().splitlines()
            publisher.publish("orders", lines)
        wait_until(lambda: ready(stack.amqp_url, "invoices") == 2, 300, "two invoices")
        invoices = [json.loads(body)["order"] for body, _ in take_all(stack.amqp_url, "invoices")]
        assert sorted(invoices) == [1, 3]
        # The reason is wrapped, but no word is split.
        shown = stack.tiercel("dead-letters", "show", "orders").replace("│", " ").split()
        assert {"Reject:", "pieces"} <= set(shown)
        assert "my-project has ended" in stack.tiercel("kill", "my-project")
