"""Escape sequences in bodies, reasons and names never reach a terminal: every command that shows
them, on a pty.
"""

import os
import pty
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime

import pytest

from tests.support.broker import delete, put, unique
from tests.support.terminal import at_a_terminal
from tests.support.waiting import wait_until
from tiercel import BasicBolt, QueueSpout, TopologyBuilder, WorkQueue, declare_queue
from tiercel.acker.metrics.contract import ErrorReport
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.queues.publishing.dead_letters import show
from tiercel.workers.control.registry import Registry

EVIL = "\x1b]0;OWNED\x07\x1b]52;c;ZWNobw==\x07\x1b[31;5;7m\x9b31;5;7m\u202eOWNED"
# rich itself writes colours and moves the cursor, but writes none of these.
OBEYED = (b"\x1b]", b"\x07", b"\x1b[31;5;7m", "\x9b".encode(), "\u202e".encode())


def topology_of(name: str) -> str:
    """Return the topology of a queue; its name must be printable."""
    return f"OWNED-{name[-8:]}"


@pytest.fixture(scope="module")
def name(amqp_url, redis_url):
    """A queue, its bolt, errors and dead letters, all with escape sequences."""
    name = unique(f"evil{EVIL}")
    builder = TopologyBuilder(topology_of(name))
    builder.set_spout("lines", QueueSpout(name))
    builder.set_bolt(f"bolt{EVIL}", BasicBolt()).shuffle_grouping("lines")
    with closing(Registry(redis_url)) as registry:
        registry.announce(builder.build())
    declare_queue(amqp_url, WorkQueue(name=name))
    headers = {"x-tiercel-reason": f"ValueError: {EVIL}", "x-tiercel-queue": f"other{EVIL}"}
    put(amqp_url, f"{name}.dead", b"body \xc2\x9b31;5;7m \xe2\x80\xaeOWNED", headers=headers)
    put(amqp_url, f"{name}.dead", f"binary {EVIL}".encode(), headers=headers)
    with closing(RedisMetrics(redis_url, topology_of(name))) as metrics:
        metrics.report(
            [
                ErrorReport(
                    at=datetime.now(UTC),
                    component=f"bolt{EVIL}",
                    task=2,
                    message=f"ValueError: {EVIL}",
                )
            ]
        )
    yield name
    for queue in (name, f"{name}.dead"):
        delete(amqp_url, queue)


@pytest.fixture
def tiercel(amqp_url, redis_url):
    """Return the text that a command sends to a terminal.

    The command is ended once the text ``until`` has appeared.
    """
    environment = {
        **os.environ,
        "TIERCEL_AMQP": amqp_url,
        "TIERCEL_REDIS": redis_url,
        "TERM": "xterm-256color",
    }

    def run(*arguments, until=None, **variables):
        with at_a_terminal(
            *arguments, environment={**environment, "COLUMNS": "300", **variables}
        ) as terminal:
            if until is not None:
                wait_until(lambda: until in terminal.seen(), 60, f"{until} in {terminal.seen()}")
                terminal.process.terminate()
            wait_until(
                lambda: (terminal.seen(), terminal.process.poll())[1] is not None, 60, "its end"
            )
            return terminal.seen()

    return run


def is_harmless(seen):
    for sequence in OBEYED:
        assert sequence not in seen, seen[max(0, seen.find(sequence) - 40) :][:120]
    assert b"OWNED" in seen, "it was shown, as text"
    return True


def test_errors(tiercel, name):
    assert is_harmless(tiercel("errors", topology_of(name)))


def test_top(tiercel, name):
    top = ["top", topology_of(name), "--window", "all"]
    assert is_harmless(tiercel(*top, until=b"__acker", LINES="60"))


def test_depths(tiercel, name):
    assert is_harmless(tiercel("depths", name))
    assert is_harmless(tiercel("depths", name, "--json"))
    assert is_harmless(tiercel("depths", name, "--fail-above", f"{name}.dead=0"))


def test_dead_letters(tiercel, name, amqp_url):
    assert is_harmless(tiercel("dead-letters", "show", name))
    for letter in show(amqp_url, name):
        assert is_harmless(tiercel("dead-letters", "read", name, letter.id))
    assert is_harmless(tiercel("dead-letters", "read", name, "no such"))


def test_peek(tiercel, name):
    assert is_harmless(tiercel("peek", f"{name}.dead"))
    assert is_harmless(tiercel("peek", f"{name}.dead", "--json"))


def test_what_a_refusal_names(tiercel, name):
    assert is_harmless(tiercel("errors", "no such topology"))
    assert is_harmless(tiercel("state", topology_of(name), "no such bolt"))
    assert is_harmless(tiercel("peek", f"no such {name}"))
    assert is_harmless(tiercel("deactivate", name))
    assert is_harmless(tiercel("activate", name))


LOGS = """
import logging
from tiercel.workers.lifecycle import set_up_logging

set_up_logging({format!r}, "info", "spout-1" + {evil!r})
logging.getLogger("a" + {evil!r}).warning("failed: %s", {evil!r}, extra={{"reason": {evil!r}}})
try:
    raise ValueError({evil!r})
except ValueError:
    logging.getLogger("b").exception("with a traceback")
"""


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("console", ["terminal", "pipe"])
def test_logs(log_format, console):
    code = LOGS.format(format=log_format, evil=EVIL)
    ours, theirs = pty.openpty()
    error = theirs if console == "terminal" else subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stderr=error)
    os.close(theirs)
    seen = process.stderr.read() if process.stderr else all_of(ours)
    assert process.wait(30) == 0
    os.close(ours)
    if process.stderr:
        process.stderr.close()
    assert is_harmless(seen)


def all_of(terminal):
    seen = bytearray()
    while True:
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # the other end is closed
            return bytes(seen)
