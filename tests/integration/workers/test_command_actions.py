"""Commands log each change: the action, its target, and the user."""

import json
import os
import pwd
import socket

import pytest
from typer.testing import CliRunner

from tests.support.ran import ran
from tiercel.workers.cli.app import app


@pytest.fixture
def name(amqp_url, redis_url):
    """A topology that has run, and its queue with three dead letters."""
    with ran(amqp_url, redis_url, "changed", b"a", b"b", b"c") as name:
        yield name


@pytest.fixture
def actions(amqp_url, redis_url):
    """Run a command; return its logged (action, target, outcome, origin)."""
    environment = {"TIERCEL_AMQP": amqp_url, "TIERCEL_REDIS": redis_url, "TIERCEL_LOG": "json"}

    def run(*arguments):
        result = CliRunner().invoke(app, arguments, env=environment)
        assert result.exit_code == 0, result.output
        entries = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
        found = [entry for entry in entries if entry["event"] == "action"]
        return [(each["action"], each["target"], each["outcome"], each["origin"]) for each in found]

    return run


def test_each_command_that_changes_something_says_what_and_by_whom(actions, name):
    me = f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"
    assert actions("dead-letters", "requeue", name, "--limit", "1", "--yes") == [
        ("requeue", name, "put 1 message back", me)
    ]
    assert actions("dead-letters", "delete", name, "--limit", "1", "--yes") == [
        ("delete", name, "deleted 1 dead letter", me)
    ]
    assert actions("dead-letters", "purge", name, "--yes") == [
        ("purge", name, "deleted 1 dead letter", me)
    ]
    assert actions("deactivate", name) == [("deactivate", name, "ordered", me)]
    assert actions("activate", name) == [("activate", name, "ordered", me)]
    assert actions("kill", name) == [("kill", name, "ordered", me)]


def test_looking_at_something_changes_nothing(actions, name):
    assert actions("dead-letters", "show", name) == []
    assert actions("errors", name) == []
