"""``tiercel errors``: the output for people, from a real Redis."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.terminal import command
from tiercel import QueueSpout, TopologyBuilder
from tiercel.acker.metrics.contract import ErrorReport, TraceReport, trace_counter
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.workers.control.registry import Registry

THEN = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)


@pytest.fixture
def url(redis):
    """A Redis on which nothing has run yet."""
    return redis().url


@pytest.fixture
def errors(url, capsys, tmp_path, monkeypatch):
    """Run the command; return its exit code, its output, and its stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, columns=120):
        ended = command(capsys, "errors", "--redis", url, *arguments, COLUMNS=str(columns))
        return ended.code, ended.stdout, ended.stderr

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield run
    time.tzset()


def report(url, topology, *messages, component="split", first=0):
    """Report each message at its own second, from its own task."""
    builder = TopologyBuilder(topology)
    builder.set_spout("lines", QueueSpout("lines"))
    Registry(url).announce(builder.build())
    metrics = RedisMetrics(url, topology)
    metrics.report(
        [
            ErrorReport(
                at=THEN + timedelta(seconds=second),
                component=component,
                task=second,
                message=message,
            )
            for second, message in enumerate(messages, first)
        ]
    )
    metrics.close()


def rows(output):
    """Return the cells of a table's rows, as drawn by rich."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in output.splitlines()
        if line.startswith("│")
    ]


def test_the_newest_come_first_with_time_component_and_task(errors, url):
    report(url, "words", "ValueError: old", "ValueError: new")
    code, output, _ = errors("words")
    assert code == 0
    assert rows(output) == [
        ["2024-02-29 12:30:01", "split", "1", "ValueError: new"],
        ["2024-02-29 12:30:00", "split", "0", "ValueError: old"],
    ]


def test_without_a_name_all_topologies_are_shown_by_time_each_with_its_own(errors, url):
    report(url, "words", "a", "c", first=0)
    report(url, "orders", "b", first=1)
    report(url, "quiet")
    _, output, _ = errors()
    assert sorted((row[0][-2:], row[1], row[-1]) for row in rows(output)) == [
        ("00", "words", "a"),
        ("01", "orders", "b"),
        ("01", "words", "c"),
    ]
    times = [row[0] for row in rows(output)]
    assert times == sorted(times, reverse=True)


def test_a_limit_leaves_the_newest_of_all_topologies(errors, url):
    report(url, "words", "a", "b", "c")
    report(url, "orders", "d", "e", first=3)
    _, output, _ = errors("--limit", "3")
    assert [row[-1] for row in rows(output)] == ["e", "d", "c"]
    code, _, said = errors("--limit", "0")
    assert code == 2
    assert "--limit" in said


def test_a_topology_without_errors_has_none(errors, url):
    report(url, "words")
    assert errors()[:2] == (0, "no errors\n")
    assert errors("words")[:2] == (0, "no errors\n")


def test_where_nothing_has_run_that_is_said(errors):
    code, _, said = errors()
    assert code == 2
    assert (
        said
        == "tiercel: no topology has run here yet: start one, or name another Redis with --redis\n"
    )


def test_a_name_that_never_ran_is_told_from_one_without_errors(errors, url):
    report(url, "words")
    report(url, "orders", "a")
    code, _, said = errors("wordz")
    assert (code, said) == (2, "tiercel: there is no topology 'wordz'; there are orders, words\n")


def test_passwords_are_not_shown(errors, url):
    report(
        url,
        "words",
        "ConnectionError: redis://:hush@host:6379/0 and amqp://guest:secret@rabbit is away",
    )
    _, output, _ = errors(columns=200)
    assert "redis://:***@host:6379/0 and amqp://guest:***@rabbit is away" in output


def test_markup_and_control_characters_in_a_reason_are_text(errors, url):
    report(
        url,
        "words",
        "KeyError: [bold red]'x'[/] \x1b[2J\x07 :smile: [/nothing]",
        component="[b]split[/b]",
    )
    _, output, _ = errors()
    [[_, component, _, reason]] = rows(output)
    assert component == "[b]split[/b]"
    assert reason == r"KeyError: [bold red]'x'[/] \x1b[2J\x07 :smile: [/nothing]"


def test_on_a_narrow_terminal_nothing_is_cut_off(errors, url):
    reason = " ".join(f"word{number}" for number in range(40))
    report(url, "words", reason, component="a-component-with-a-name-that-is-rather-long")
    _, output, _ = errors(columns=60)
    shown = rows(output)
    assert "".join(row[1] for row in shown) == "a-component-with-a-name-that-is-rather-long"
    assert " ".join(row[3] for row in shown if row[3]).split() == reason.split()


def test_a_redis_that_is_away_is_one_line(errors):
    code, output, said = errors("--redis", "redis://:secret@127.0.0.1:1/0")
    assert (code, output, len(said.splitlines())) == (2, "", 1)
    assert said.startswith("tiercel: ")
    assert "secret" not in said


def trace(
    url, topology, *, seconds=(0,), kind="KeyError", text="Traceback:\n  deep\nKeyError: 'x'"
):
    """Report errors that a bolt raised at these seconds."""
    report(url, topology)
    metrics = RedisMetrics(url, topology)
    metrics.trace(
        [
            TraceReport(
                at=THEN + timedelta(seconds=second),
                component="split",
                task=3,
                kind=kind,
                place="helpers.py:12",
                reason=f"{kind}: 'x' (helpers.py:12)",
                text=text,
            )
            for second in seconds
        ]
    )
    metrics.add("split", 3, {trace_counter(kind, "helpers.py:12"): len(seconds)})
    metrics.close()


def test_tracebacks_are_shown_by_kind_with_their_count_and_times(errors, url):
    trace(url, "words", seconds=(0, 4, 61))
    trace(url, "words", seconds=(7,), kind="OSError")
    code, output, _ = errors("words", "--traceback")
    assert code == 0
    assert (
        output
        == """\
split: KeyError: 'x' (helpers.py:12)
3 times, first at 2024-02-29 12:30:00, last at 2024-02-29 12:31:01; the first one in task 3:
    Traceback:
      deep
    KeyError: 'x'

split: OSError: 'x' (helpers.py:12)
once, at 2024-02-29 12:30:07; the first one in task 3:
    Traceback:
      deep
    KeyError: 'x'
"""
    )


def test_tracebacks_of_several_topologies_are_named_and_limited(errors, url):
    trace(url, "words")
    trace(url, "orders", seconds=(5,))
    assert errors("--traceback")[1].startswith("orders split: KeyError")
    assert "words" not in errors("--traceback", "--limit", "1")[1]
    report(url, "quiet")
    assert errors("quiet", "--traceback")[:2] == (0, "no errors that a bolt raised\n")


def test_a_traceback_shows_no_password_and_no_line_of_it_looks_like_an_error_s_head(errors, url):
    trace(url, "words", text="redis://:hush@host\nsplit: OSError: forged\n\x1b[2J")
    _, output, _ = errors("--traceback")
    assert "redis://:***@host" in output
    assert [line for line in output.splitlines() if not line.startswith(" ")][2:] == []
    assert r"\x1b[2J" in output
