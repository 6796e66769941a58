"""Commands are listed without importing their files, which are imported when called."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tiercel.workers.cli.app import COMMANDS, app, loaded

NAMES = {name: line for lines in COMMANDS.values() for name, line in lines.items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_list_of_commands_says_of_each_what_its_own_help_says(name):
    command = loaded(name)
    assert command.name == name
    first = (command.help or "").partition("\n\n")[0]
    assert " ".join(first.split()) == NAMES[name]


def test_every_command_of_each_file_is_in_the_list():
    for file, lines in COMMANDS.items():
        module = sys.modules[f"tiercel.workers.cli.{file}"] if loaded(next(iter(lines))) else None
        own = [*module.commands.registered_commands, *module.commands.registered_groups]
        assert len(own) == len(lines)


def test_the_help_of_tiercel_waits_for_no_library_of_a_command():
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from tiercel.workers.cli.app import app\n"
        "assert 'depths' in CliRunner().invoke(app, ['--help']).output\n"
        "slow = {'numpy', 'pyarrow', 'pyspark', 'nicegui', 'pika', 'redis', 'pydantic'}\n"
        "print(slow & set(sys.modules))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "set()\n"


@pytest.mark.parametrize(
    "module", ["spout.process", "cli.topologies", "cli.orders", "cli.queues", "cli.state"]
)
def test_only_processes_of_bolts_and_drivers_import_the_engine(module):
    """A spout worker or a command starts a tenth sooner without it."""
    program = (
        f"import sys, tiercel.workers.{module}\n"
        "engine = ('pyspark', 'tiercel.spark_jobs.kinds', 'tiercel.spark_jobs.process.host')\n"
        "print([name for name in sys.modules if name.startswith(engine)])\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "[]\n"


@pytest.mark.parametrize(
    ("file", "heavy"),
    [
        ("orders", "{'numpy', 'pyarrow', 'pika', 'pyspark', 'nicegui'}"),
        ("topologies", "{'pyspark', 'nicegui', 'tiercel.queues.queue_spout'}"),
    ],
)
def test_orders_and_views_wait_for_no_library_that_they_do_not_need(file, heavy):
    """NumPy alone is a sixth of an order's CPU."""
    program = f"import sys, tiercel.workers.cli.{file}; print({heavy} & set(sys.modules))"
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "set()\n"


def test_a_command_that_there_is_not_is_named_with_one_that_is_alike():
    result = CliRunner().invoke(app, ["kil"])
    assert result.exit_code == 2
    assert "Did you mean 'kill'?" in result.output


def test_while_the_libraries_of_a_command_are_imported_ctrl_c_ends_it_at_once():
    program = (
        "import time\n"
        "from tiercel.workers.cli import app\n"
        "app.import_module = lambda name: (print(name, flush=True), time.sleep(60))\n"
        "app.loaded('run')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "tiercel.workers.cli.run\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert (process.returncode, said) == (-signal.SIGINT, "")


def test_the_version_is_the_projects():
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"tiercel {project['version']}\n")
