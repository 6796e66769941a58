"""A typo in any public keyword is refused with the nearest name.

Settings in files and in the environment: tests/unit/workers/test_settings_files.py.
"""

import inspect

import pytest
from typer.testing import CliRunner

from tiercel import (
    BasicBolt,
    Config,
    DatabaseSink,
    QueueSink,
    QueueSpout,
    RetryPolicy,
    TopologyBuilder,
    TopologyError,
    WorkQueue,
)
from tiercel.workers.cli.app import COMMANDS, app, loaded

BUILDER = TopologyBuilder("typos")
CALLS = {
    "Config": Config,
    "QueueSpout": QueueSpout,
    "QueueSink": QueueSink,
    "DatabaseSink": DatabaseSink,
    "RetryPolicy": RetryPolicy,
    "WorkQueue": WorkQueue,
    "set_spout": BUILDER.set_spout,
    "set_bolt": BUILDER.set_bolt,
}
KEYWORDS = [
    (name, keyword)
    for name, call in CALLS.items()
    for keyword, parameter in inspect.signature(call).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD
]


def typo_in(name):
    """Return the name without its last letter but one; a short name gets an extra letter."""
    return f"{name[:-2]}{name[-1]}" if len(name) > 4 else f"{name}x"


@pytest.mark.parametrize(("call", "keyword"), KEYWORDS)
def test_a_typo_in_a_keyword_is_refused_with_the_nearest_name(call, keyword):
    typo = typo_in(keyword)
    with pytest.raises(Exception, match="did you mean") as refused:
        CALLS[call](**{typo: None})
    assert repr(typo) in str(refused.value)
    assert repr(keyword) in str(refused.value)


def options():
    for name in (name for lines in COMMANDS.values() for name in lines):
        command = loaded(name)
        for words, each in [([name], command), *subcommands(name, command)]:
            for parameter in each.params:
                for option in parameter.opts:
                    if option.startswith("--") and not getattr(parameter, "hidden", False):
                        yield words, option


def subcommands(name, command):
    return [([name, under], each) for under, each in getattr(command, "commands", {}).items()]


def test_a_typo_in_an_option_is_refused_with_the_nearest_name():
    found = 0
    for words, option in options():
        typo = f"--{typo_in(option.removeprefix('--'))}"
        result = CliRunner().invoke(app, [*words, typo], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert f"No such option: {typo}" in result.output
        assert option in result.output.replace(typo, ""), result.output
        found += 1
    assert found > 50


def test_a_command_line_with_a_typo_in_a_command_names_the_nearest_one():
    for name in (name for lines in COMMANDS.values() for name in lines):
        result = CliRunner().invoke(app, [typo_in(name)], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert f"'{name}'" in result.output


@pytest.mark.parametrize(
    "name",
    [
        "execute_timeout_secs",
        "tick_tuple_freq_secs",
        "max_output_bytes",
        "ordered_by",
        "rate_limit",
        "rate_limit_by",
        "concurrency",
        "threads",
        "wait_ms",
    ],
)
def test_a_typo_in_a_setting_of_a_bolt_is_refused_with_the_nearest_name(name):
    typo = typo_in(name)
    with pytest.raises(TopologyError, match="did you mean") as refused:
        TopologyBuilder("typos").set_bolt("bolt", BasicBolt(), config={typo: 3})
    assert repr(typo) in str(refused.value)
    assert repr(name) in str(refused.value)


def test_a_setting_of_ones_own_may_have_any_other_name():
    TopologyBuilder("typos").set_bolt("bolt", BasicBolt(), config={"rates": 3, "site": "x"})
