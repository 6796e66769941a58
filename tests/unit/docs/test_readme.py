"""The README's topology runs, and its commands exist."""

import re
from pathlib import Path

from typer.testing import CliRunner

from tiercel import Topology
from tiercel.workers.cli.app import app

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_topology_in_the_readme_builds():
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {"__name__": "long_words"}
    exec(compile(code, "README.md", "exec"), names)
    topology = names["topology"]()
    assert isinstance(topology, Topology)
    assert len(topology.bolts) == 2


def test_every_command_in_the_readme_is_one_of_ours():
    commands = re.findall(
        r"^    (?:\.venv/bin/)?tiercel ([a-z-]+)(?: (show|requeue|purge))?", README, re.MULTILINE
    )
    assert len(commands) >= 5
    for command, subcommand in commands:
        result = CliRunner().invoke(app, [*filter(None, (command, subcommand)), "--help"])
        assert result.exit_code == 0, (command, subcommand, result.output)
