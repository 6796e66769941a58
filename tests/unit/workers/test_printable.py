"""Characters that a terminal would obey are escaped, in one place for all output and logs."""

import ast
import io
import json
import logging
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tiercel.acker.metrics.contract import ErrorReport
from tiercel.spark_jobs.logs.formatters import JsonFormatter, TextFormatter, printable
from tiercel.workers.monitoring.screen import depth_table, error_table, own_table
from tiercel.workers.monitoring.tables import body_text
from tiercel.workers.terminal import cell, say

ROOT = Path(__file__).parents[3]
EVIL = (
    "boom \x1b]0;OWNED\x07 \x1b[2J\x1b]52;c;ZWNobw==\x07 "
    "\x9b31m\x7f\u202egnp.exe\r\u2028fake\n07:00:01 ERROR   driver  FAKE"
)


def obeyed(text, kept=""):
    """Return the characters that a terminal obeys, or that change how it shows others."""
    return [
        each
        for each in text
        if each not in kept and unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    ]


def record(message, **extra):
    return logging.getLogger("tiercel").makeRecord(
        "tiercel", logging.WARNING, "", 1, message, (), None, extra=extra
    )


@given(st.text())
def test_nothing_that_is_obeyed_is_left_and_the_rest_is_as_it_was(text):
    shown = printable(text)
    assert not obeyed(shown)
    assert printable(shown) == shown
    if not obeyed(text) and text.isprintable():
        assert shown == text


def test_it_says_what_was_there():
    assert printable("a\x1b[2J\x9b\u202e\ud800\n\t") == r"a\x1b[2J\x9b\u202e\ud800\n\t"
    assert printable("line\nnext\tcolumn", kept="\n\t") == "line\nnext\tcolumn"
    assert printable("naïve 日本　語 🦅") == "naïve 日本　語 🦅"


def test_a_log_line_of_text_holds_no_escape_and_no_second_line():
    lines = TextFormatter("spout-1").format(record(EVIL)).split("\n")
    assert not obeyed("".join(lines))
    assert [line[:4] for line in lines[1:]] == ["    "], "a message cannot begin a record"
    assert r"\x1b]0;OWNED\x07" in lines[0]


def test_a_log_line_of_json_is_ascii_and_says_the_same():
    line = JsonFormatter("spout-1").format(record(EVIL, reason=EVIL))
    assert line.isascii()
    assert not obeyed(line)
    entry = json.loads(line)
    assert entry["message"] == entry["reason"] == EVIL


def test_a_traceback_in_the_log_holds_no_escape():
    odd = record("failed")
    odd.exc_info = (ValueError, ValueError(EVIL), None)
    assert not obeyed(TextFormatter().format(odd), kept="\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_body_holds_none(end):
    body = f"a{end}b\x9b\u202e\r".encode()
    assert body_text(body, len(body)) == ("text", "a\nb\\x9b\\u202e\\r")
    assert not obeyed(body_text(EVIL.encode(), len(EVIL.encode()))[1], kept="\n")


def rendered(renderable):
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=300)
    console.print(renderable)
    return console.file.getvalue()


def test_a_table_holds_none_whatever_the_names_are():
    error = ErrorReport(at=datetime.now(UTC), component=EVIL, task=1, message=EVIL)
    for shown in (
        rendered(error_table([(EVIL, error), ("other", error)])),
        rendered(cell(EVIL, "bold")),
    ):
        assert not obeyed(shown, kept="\n")
        assert r"\x1b]52;c;" in shown.replace("\n", "")
    assert rendered(depth_table([]))
    assert rendered(own_table([]))


def test_what_a_command_says_holds_none(capsys):
    say(EVIL)
    say(EVIL, err=True)
    captured = capsys.readouterr()
    for shown in (captured.out, captured.err):
        assert not obeyed(shown, kept="\n")
        assert "OWNED" in shown


def test_there_is_one_way_to_the_terminal():
    """Code that makes a cell or writes a line by itself would forget the escaping."""
    for path in (ROOT / "workers").rglob("*.py"):
        if path.name in ("terminal.py", "cells.py"):
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "rich.text"), path
            assert not (isinstance(node, ast.Attribute) and node.attr == "echo"), path
            assert not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ), path
