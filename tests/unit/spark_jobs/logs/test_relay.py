"""Records of Spark's Python workers arrive unchanged in the driver's log."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import warnings
from datetime import UTC, datetime

import pytest

from tests.support.waiting import wait_until
from tiercel.spark_jobs.logs.formatters import JsonFormatter, TextFormatter
from tiercel.spark_jobs.logs.relay import (
    RelayHandler,
    RelayReader,
    Speaking,
    WholeLines,
    WorkerLogs,
    new_mark,
    speak_as,
)
from tiercel.workers.driver.jvm_output import as_log_records

MARK = new_mark()


@pytest.fixture(autouse=True)
def unchanged_logging():
    root = logging.getLogger()
    before = root.handlers[:]
    level = root.level
    outputs = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = outputs
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)


class Wire:
    """The lines of one worker, and the driver's records of them."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.handler = RelayHandler(MARK, self.lines.append)
        self.handler.addFilter(Speaking())
        self.logger = logging.Logger("orders.api", logging.DEBUG)  # noqa: LOG001 - of this wire alone
        self.logger.addHandler(self.handler)

    def arrived(self) -> list[logging.LogRecord]:
        reader = RelayReader(MARK)
        found = [reader.record(line.decode().rstrip("\n")) for line in self.lines]
        return [record for record in found if record is not None]


@pytest.fixture
def wire() -> Wire:
    return Wire()


def as_bolt(component: str, task: int, call) -> None:
    """Run it on a bolt task's own thread."""

    def run() -> None:
        speak_as(component, task)
        call()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_level_logger_time_task_and_extras_are_those_of_the_bolt(wire):
    before = datetime.now(UTC).timestamp()
    as_bolt("enrich", 7, lambda: wire.logger.warning("at %d %%", 12, extra={"order": 5}))
    [record] = wire.arrived()
    assert (record.name, record.levelname, record.getMessage()) == (
        "orders.api",
        "WARNING",
        "at 12 %",
    )
    assert (record.bolt, record.task, record.order) == ("enrich", 7, 5)
    assert before <= record.created <= datetime.now(UTC).timestamp()
    assert TextFormatter("driver").format(record)[9:] == "WARNING enrich[7] orders.api  at 12 %"
    entry = json.loads(JsonFormatter("driver").format(record))
    assert entry["level"] == "warning"
    assert entry["logger"] == "orders.api"
    assert (entry["bolt"], entry["task"], entry["order"]) == ("enrich", 7, 5)


def test_our_own_records_keep_the_driver_s_name_and_their_event(wire):
    wire.logger.name = "tiercel.spark_jobs.running.counting"
    as_bolt("enrich", 7, lambda: wire.logger.info("enrich[7]: no", extra={"event": "bolt_raised"}))
    [record] = wire.arrived()
    assert TextFormatter("driver").format(record)[9:] == "INFO    driver  enrich[7]: no"
    assert json.loads(JsonFormatter("driver").format(record))["event"] == "bolt_raised"


@pytest.mark.parametrize("error", [BlockingIOError, BrokenPipeError, OSError])
def test_a_line_that_cannot_be_written_does_not_raise_in_the_bolt_task(error):
    def write(line):
        raise error

    handler = RelayHandler(MARK, write)
    lost = []
    handler.handleError = lost.append
    handler.handle(logging.makeLogRecord({"msg": "a failure"}))
    assert [record.msg for record in lost] == ["a failure"]


def test_a_traceback_comes_along(wire):
    try:
        _ = {}["deep"]
    except KeyError:
        wire.logger.exception("no order")
    [record] = wire.arrived()
    assert "    KeyError: 'deep'" in TextFormatter().format(record).splitlines()
    assert json.loads(JsonFormatter().format(record))["error"].endswith("KeyError: 'deep'")


def test_a_stack_comes_along(wire):
    wire.logger.info("here", stack_info=True)
    [record] = wire.arrived()
    assert record.stack_info.startswith("Stack (most recent call last):")


def test_no_line_is_longer_than_what_a_pipe_takes_at_once(wire):
    said = "漢字 and \n" * 2_000
    wire.logger.info("%s", said)
    wire.logger.info("next")
    assert max(map(len, wire.lines)) <= 4_096
    assert len(wire.lines) > 3
    assert [record.getMessage() for record in wire.arrived()] == [said, "next"]


def test_the_lines_of_several_processes_may_mix(wire, monkeypatch):
    wire.logger.info("%s", "a" * 10_000)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    first = wire.lines[:]
    wire.lines.clear()
    wire.logger.info("%s", "b" * 10_000)
    wire.lines[:] = [line for pair in zip(first, wire.lines, strict=True) for line in pair]
    assert [record.getMessage()[0] for record in wire.arrived()] == ["a", "b"]


def test_a_record_whose_process_died_in_the_middle_is_left_out(wire):
    wire.logger.info("%s", "a" * 10_000)
    del wire.lines[1]
    for number in range(200):
        wire.lines.append(f"{MARK} 1.{number} 1/2 xxx\n".encode())
    wire.logger.info("next")
    wire.lines += [f"{MARK} what\n".encode(), f"{MARK} 9.9 1/1 {{\n".encode()]
    assert [record.getMessage() for record in wire.arrived()] == ["next"]


def test_a_line_without_the_mark_is_no_record():
    reader = RelayReader(MARK)
    assert reader.owns(f"{MARK} 1.1 1/1 {{}}")
    assert not reader.owns(f"{new_mark()} 1.1 1/1 {{}}")
    assert not reader.owns(f"a bolt prints {MARK} 1.1 1/1 {{}}")


def test_a_record_with_unfit_arguments_or_odd_extras_arrives(wire):
    wire.logger.info("%d", "x")
    wire.logger.info("%s", "fine", extra={"odd": object(), "keys": {(1, 2): float("nan")}})
    unfit, record = wire.arrived()
    assert unfit.getMessage().startswith("%d does not fit ('x',): TypeError (test_relay.py:")
    assert record.getMessage() == "fine"
    assert record.odd.startswith("<object")
    assert record.keys == {"(1, 2)": "nan"}


def test_a_worker_s_records_reach_the_driver_s_log_through_its_stderr(caplog, capfd):
    caplog.set_level("DEBUG")
    with as_log_records() as mark:
        handlers = logging.getLogger().handlers[:]
        WorkerLogs(level="debug", mark=mark).set_up()
        as_bolt("enrich", 7, lambda: logging.getLogger("orders").debug("looked"))
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("careful", UserWarning, stacklevel=1)
        logging.getLogger().handlers[:] = handlers
        os.write(2, b"what a bolt printed\n")
        wait_until(lambda: "what a bolt printed" in caplog.messages, 5, "the last line")
    found = {record.name: record for record in caplog.records}
    assert found["orders"].levelname == "DEBUG"
    assert found["orders"].bolt == "enrich"
    assert "careful" in found["py.warnings"].getMessage()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("form", "line"),
    [("text", "enrich[7] orders  at redis://:***@h"), ("json", '"message": "at redis://:***@h"')],
)
def test_on_an_executor_of_a_cluster_lines_have_the_chosen_form(monkeypatch, form, line):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    WorkerLogs(level="warning", form=form).set_up()
    as_bolt("enrich", 7, lambda: logging.getLogger("orders").warning("at redis://:pw@h"))
    logging.getLogger("orders").info("less")
    [said] = written.getvalue().splitlines()
    assert line in said


def printing(output: WholeLines, text: str) -> threading.Thread:
    return threading.Thread(target=print, args=[text], kwargs={"file": output})


def test_lines_that_threads_print_at_once_stay_whole():
    output = io.StringIO()
    lines = WholeLines(output)
    lines.write("half of ")
    other = printing(lines, "between\nthe two")
    other.start()
    other.join()
    lines.write("a line\nand more")
    assert output.getvalue() == "between\nthe two\nhalf of a line\n"
    print(file=lines, end="", flush=True)
    assert output.getvalue().endswith("and more")
    assert not lines.isatty()


def test_a_worker_prints_whole_lines(capsys):
    WorkerLogs().set_up()
    output = sys.stdout
    WorkerLogs().set_up()
    assert sys.stdout is output
    output.write("half ")
    other = printing(output, "between")
    other.start()
    other.join()
    output.write("done\n")
    assert capsys.readouterr().out == "between\nhalf done\n"
