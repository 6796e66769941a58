"""Log lines: readable, or JSON; never with a password."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings

import pytest
from rich.console import Console

from tiercel.spark_jobs.logs.formatters import JsonFormatter, TextFormatter, redact
from tiercel.workers.lifecycle import set_up_logging


@pytest.fixture(autouse=True)
def unchanged_logging():
    root = logging.getLogger()
    before = root.handlers[:]
    level = root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("tiercel.workers.spout").makeRecord(
        "tiercel.workers.spout", logging.WARNING, __file__, 1, message, args, None, extra=extra
    )


def test_a_text_line_has_time_level_component_and_message() -> None:
    line = TextFormatter("spout-1").format(record("lost the channel"))
    assert line[8:] == " WARNING spout-1  lost the channel"
    assert line[2] == line[5] == ":"


def test_a_text_line_without_a_component_names_its_logger() -> None:
    assert TextFormatter().format(record("hello")).endswith("WARNING tiercel.workers.spout  hello")


def test_a_json_line_has_the_event_and_everything_extra() -> None:
    entry = json.loads(
        JsonFormatter("spout-1").format(record("lost %s", "it", event="channel_lost", epoch=3))
    )
    time = entry.pop("time")
    assert time.endswith("+00:00")
    assert entry == {
        "level": "warning",
        "logger": "tiercel.workers.spout",
        "component": "spout-1",
        "event": "channel_lost",
        "message": "lost it",
        "epoch": 3,
    }


def test_a_json_line_is_json_whatever_numbers_it_has() -> None:
    odd = {"price": float("nan"), "sums": [float("inf"), -float("inf"), 1.5], "n": 10**30}
    line = JsonFormatter().format(record("m", **odd))
    entry = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (entry["price"], entry["sums"]) == ("nan", ["inf", "-inf", 1.5])


def test_an_extra_field_hides_no_field_of_a_json_line() -> None:
    given = {"time": "x", "level": "critical", "logger": "forged", "error": "none"}
    entry = json.loads(JsonFormatter().format(record("m", **given)))
    assert (entry["level"], entry["logger"]) == ("warning", "tiercel.workers.spout")
    assert entry["time"].endswith("+00:00")
    assert {name: entry[f"extra_{name}"] for name in given} == given


def test_a_json_line_stays_one_line_with_a_traceback_and_with_odd_values() -> None:
    odd = record("failed", what=object(), event="bad")
    odd.exc_info = (ValueError, ValueError("two\nlines"), None)
    line = JsonFormatter().format(odd)
    assert "\n" not in line
    assert "ValueError: two\nlines" in json.loads(line)["error"]


def test_a_json_line_has_the_stack_that_a_call_asks_for() -> None:
    given = record("m", stack="mine")
    given.stack_info = "Stack (most recent call last):\n  here"
    entry = json.loads(JsonFormatter().format(given))
    assert (entry["stack"], entry["extra_stack"]) == (given.stack_info, "mine")


class Unreadable:
    def __repr__(self) -> str:
        raise LookupError


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


ODD = {
    "unreadable": Unreadable(),
    "nested": {"a": [Unreadable()]},
    "deep": nested(5_000),
    "huge": 10**5_000,
    "keys": {(1, 2): 3, b"\xff": 4},
    "set": {1},
}
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("value", [*ODD.values(), ENDLESS], ids=[*ODD, "endless"])
def test_no_extra_value_costs_a_json_line(value: object) -> None:
    entry = json.loads(JsonFormatter().format(record("m", odd=value)))
    assert entry["message"] == "m"
    assert entry["odd"]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("arguments", [("%d", "x"), ("%s %s", 1), ("%s", Unreadable())])
def test_arguments_that_do_not_fit_are_shown_with_their_line(
    formatter: logging.Formatter, arguments: tuple[str, object]
) -> None:
    line = formatter.format(record(*arguments))
    assert f"{arguments[0]} does not fit " in line
    assert "Error (test_logs.py:1)" in line
    assert "\n" not in line


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_passwords_in_urls_are_redacted_wherever_they_are(formatter: logging.Formatter) -> None:
    url = "amqp://guest:s3:cr@et@rabbit:5672/%2F"
    entry = record("at %s", url, where={"url": url})
    entry.exc_info = (OSError, OSError(f"cannot reach {url}"), None)
    line = formatter.format(entry)
    assert "cr@et" not in line
    assert "guest:***@rabbit:5672/%2F" in line


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("redis://:pw@h/0", "redis://:***@h/0"),
        ("redis://:pw@h/0,redis://u:pw@i", "redis://:***@h/0,redis://u:***@i"),
        ("redis://h:6379/0 mail a@b", "redis://h:6379/0 mail a@b"),
        ("http://host:80/a:b@c", "http://host:80/a:b@c"),
    ],
)
def test_only_credentials_are_redacted(text: str, redacted: str) -> None:
    assert redact(text) == redacted


def test_set_up_logging_writes_json_lines_to_stderr(capsys) -> None:
    set_up_logging("json", "info", "driver")
    logging.getLogger("a").info("shown")
    logging.getLogger("a").debug("not shown")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [json.loads(line)["message"] for line in captured.err.splitlines()] == ["shown"]


def test_an_error_that_ends_a_thread_is_a_record_without_passwords() -> None:
    """In a process of its own: pytest has such a hook too."""
    code = (
        "import sys, threading; from tiercel.workers.lifecycle import set_up_logging;"
        "set_up_logging('json');"
        "threading.Thread(target=int, args=['redis://:s3cret@h \\x1b[2J'], name='mine').start();"
        "threading.Thread(target=sys.exit).start()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    [line] = done.stderr.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["event"]) == ("error", "thread_failed")
    assert "mine" in entry["message"]
    assert "redis://:***@h" in entry["error"]
    assert "s3cret" not in line


def test_set_up_logging_twice_writes_every_line_once(capsys) -> None:
    set_up_logging("text", "info")
    set_up_logging("text", "info")
    logging.getLogger("a").info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_warnings_go_to_the_log(capsys) -> None:
    set_up_logging("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("careful", UserWarning, stacklevel=1)
    assert json.loads(capsys.readouterr().err)["logger"] == "py.warnings"


def test_at_a_terminal_lines_go_through_the_console_of_the_progress_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    set_up_logging("text", "info", "demo", console)
    logging.getLogger("a").warning("[not markup] amqp://u:pw@h")
    written = console.file.getvalue()
    assert "demo  [not markup] amqp://u:***@h" in written
    assert "WARNING" in written
