"""Ctrl-C at any moment of ``tiercel run``: a line at once, a clean end, and no leftovers."""

import os
import signal
import time

import pytest

from tests.support.children import spark_jvms
from tests.support.runs import SHOUT, Desk
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def desk(tmp_path) -> Desk:
    desk = Desk(tmp_path)
    desk.write("shout.py", SHOUT)
    desk.write("text", "".join(f"line {n}\n" for n in range(2_000)))
    return desk


def interrupt(desk: Desk, process) -> None:
    """Press Ctrl-C, and check the output for the user."""
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    wait_until(lambda: '"stopping"' in desk.log, 30, "an answer")
    assert time.monotonic() - sent < 5
    assert process.wait(120) == 0
    desk.assert_nothing_is_left()
    assert not [line for line in desk.log.splitlines() if "Traceback" in line]


def test_while_the_servers_start(desk):
    with desk.run("shout:topology", until="services_starting") as process:
        began = time.monotonic()
        interrupt(desk, process)
        assert time.monotonic() - began < 15
        assert not desk.events("services_ready")


def test_when_the_servers_are_ready(desk):
    with desk.run("shout:topology", until="services_ready") as process:
        interrupt(desk, process)


def test_while_spark_starts(desk):
    with desk.run("shout:topology", until="services_ready") as process:
        wait_until(lambda: spark_jvms(process.pid), 60, "Spark's JVM")
        interrupt(desk, process)
        assert not desk.events("run_started", "child_killed")
        assert not [line for line in desk.log.splitlines() if '"ERROR"' in line]


@pytest.mark.slow
def test_while_spark_starts_on_a_machine_that_is_too_busy_for_it(desk):
    java = desk.folder / "java/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\ntouch begun\nexec sleep 600\n")
    java.chmod(0o755)
    desk.variables["JAVA_HOME"] = str(desk.folder / "java")
    with desk.run("shout:topology", until="services_ready") as process:
        begun = desk.folder / "begun"
        wait_until(begun.exists, 60, "Spark's start")
        began = time.monotonic()
        interrupt(desk, process)
        assert time.monotonic() - began < 20
        assert not desk.events("child_killed")


@pytest.mark.slow
def test_when_the_run_begins(desk):
    with desk.run("shout:topology") as process:
        interrupt(desk, process)


@pytest.mark.slow
def test_in_the_middle_of_the_work(desk):
    with desk.run("shout:topology") as process:
        desk.tiercel("publish", "lines", "text")
        wait_until(lambda: desk.log.count("heard ") > 100, 300, "the work to go on")
        interrupt(desk, process)


def test_a_jvm_that_is_killed_is_one_line_and_another_one_goes_on(desk):
    with desk.run("shout:topology") as process:
        [jvm] = spark_jvms(process.pid)
        os.kill(jvm, signal.SIGKILL)
        wait_until(lambda: len(desk.events("run_started")) == 2, 300, "a second run")
        desk.tiercel("publish", "lines", "text")
        wait_until(lambda: desk.log.count("heard ") > 100, 300, "the work to go on")
        [ended] = desk.events("spark_ended")
        assert ended["message"].startswith("Spark's JVM was killed by SIGKILL: ")
        assert not [line for line in desk.log.splitlines() if not line.startswith("{")]
        assert ended["message"].endswith("; starting another one")
        assert not desk.events("child_died")
        interrupt(desk, process)


@pytest.mark.slow
def test_with_data_that_are_kept_while_the_servers_start(desk):
    with desk.run("shout:topology", "--keep", "data", until="services_starting") as process:
        interrupt(desk, process)
    with desk.run("shout:topology", "--keep", "data", until="services_ready") as process:
        desk.tiercel("publish", "lines", "text")
        interrupt(desk, process)


def test_a_second_one_ends_it_at_once(desk):
    with desk.run("shout:topology") as process:
        process.send_signal(signal.SIGINT)
        wait_until(lambda: '"stopping"' in desk.log, 30, "an answer")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT
        wait_until(lambda: not desk.alive(), 10, "every process to be gone")
        assert not list((desk.folder / "runtime").glob("*/*")), "a note with passwords"


def test_a_run_that_follows_a_kill_at_once_waits_for_the_end_of_the_other(desk):
    with desk.run("shout:topology") as first:
        assert "shout has ended" in desk.tiercel("kill", "shout").stdout
        with desk.run("shout:topology") as second:
            assert first.wait(60) == 0
            interrupt(desk, second)
