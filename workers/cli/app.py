"""The command ``tiercel``: parses, loads what is named, and hands over to the modules
that do the work.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiercel.workers.cli import monitors as monitor_commands
from tiercel.workers.cli import queues as queue_commands
from tiercel.workers.cli import topologies as topology_commands
from tiercel.workers.cli.errors import one_line_errors
from tiercel.workers.cli.options import (
    Amqp,
    Conf,
    Level,
    Log,
    Master,
    Redis,
    TopologyName,
    load_settings,
)
from tiercel.workers.config import Settings, use_this_python_for_spark
from tiercel.workers.driver.jvm_output import as_log_records
from tiercel.workers.errors import UsageError
from tiercel.workers.signals import on_signals
from tiercel.workers.terminal import say

if TYPE_CHECKING:
    from tiercel.spark_jobs.topology.graph import Topology

app = typer.Typer(
    name="tiercel",
    help=(
        "Storm's guarantee, every message fully processed or replayed, on RabbitMQ, Redis and "
        "Spark."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def run(  # noqa: PLR0913 - one parameter an option
    topology: TopologyName,
    *,
    amqp: Amqp = None,
    redis: Redis = None,
    master: Master = None,
    log: Log = None,
    log_level: Level = None,
) -> None:
    """Run a whole topology on this machine, with private servers where none are named."""
    settings = load_settings(
        "tiercel", amqp=amqp, redis=redis, master=master, log=log, log_level=log_level
    )
    from tiercel.workers.local.run import LocalRun, servers  # noqa: PLC0415 - Arrow and numpy take a moment

    loaded = _loaded_for_spark(topology, settings)
    stopped = threading.Event()
    on_signals(stopped.set)
    with servers(settings) as found, LocalRun(topology, loaded, found) as running:
        running.wait(stopped)
        if running.refused:
            sys.exit(2)


@app.command()
def spout(  # noqa: PLR0913 - one parameter an option
    topology: TopologyName,
    component: Annotated[
        str | None, typer.Argument(help="the spout's id; by default one task of each spout")
    ] = None,
    *,
    task_index: Annotated[
        int | None, typer.Option(help="which of its tasks, from 0; by default a free one")
    ] = None,
    amqp: Amqp = None,
    redis: Redis = None,
    log: Log = None,
    log_level: Level = None,
) -> None:
    """Run one task of one spout, or of each; where all tasks have a worker, wait in reserve."""
    if task_index is not None and component is None:
        raise UsageError("--task-index is of one spout: name the spout too")
    label = (
        "spout"
        if component is None
        else component
        if task_index is None
        else f"{component}-{task_index}"
    )
    settings = load_settings(label, amqp=amqp, redis=redis, log=log, log_level=log_level).required()
    from tiercel.workers.loading import load_topology  # noqa: PLC0415 - Arrow and numpy take a moment
    from tiercel.workers.spout.worker import run_spouts  # noqa: PLC0415

    run_spouts(
        topology, load_topology(topology, settings.spout_tasks), settings, component, task_index
    )


@app.command()
def driver(  # noqa: PLR0913 - one parameter an option
    topology: TopologyName,
    *,
    amqp: Amqp = None,
    redis: Redis = None,
    master: Master = None,
    conf: Conf = None,
    log: Log = None,
    log_level: Level = None,
) -> None:
    """Run the bolts of a topology on Spark.

    It needs RabbitMQ's address only if a bolt publishes.
    """
    with as_log_records() as mark:
        settings = load_settings(
            "driver", amqp=amqp, redis=redis, master=master, log=log, log_level=log_level
        ).required("redis")
        use_this_python_for_spark(Path.cwd())
        loaded = _loaded_for_spark(topology, settings, conf or ())
        from tiercel.workers.driver.around import DriverAround, worker_logs  # noqa: PLC0415 - PySpark takes a second
        from tiercel.workers.driver.process import Driver  # noqa: PLC0415
        from tiercel.workers.heartbeat import Heartbeat  # noqa: PLC0415
        from tiercel.workers.loading import module_of  # noqa: PLC0415

        around = DriverAround(
            module=module_of(topology),
            logs=worker_logs(settings, mark),
            heartbeat=Heartbeat(settings.heartbeat),
        )
        process = Driver(loaded, settings.redis_urls, settings.master, settings.amqp, around=around)
        on_signals(process.stop)
        process.run()


@app.command()
def prepare() -> None:
    """Make Spark's JVM start in half the CPU time from now on.

    Starts it once, and keeps its classes in a file beside Spark.
    """
    use_this_python_for_spark(Path.cwd())
    from tiercel.spark_jobs.spark.class_archive import make_class_archive  # noqa: PLC0415 - PySpark takes a second

    with as_log_records():
        path = make_class_archive()
    say(f"wrote {path} ({path.stat().st_size / 1e6:.0f} MB)")


@app.command()
def demo(
    *,
    calm: Annotated[bool, typer.Option("--calm", help="without the injected faults")] = False,
    text: Annotated[
        Path | None, typer.Option(help="a text file; by default Python's language reference")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="how many times over")] = 3,
    log_level: Level = "warning",
) -> None:
    """Count a real text while things fail, and show that nothing is lost."""
    from tiercel.workers.demo.session import run_demo  # noqa: PLC0415 - with rich, Arrow and numpy

    stopped = threading.Event()
    on_signals(stopped.set)
    # On servers of its own, whatever the environment names: it publishes, counts and kills.
    settings = Settings.load(log_level=log_level).model_copy(
        update={"amqp": None, "redis": None, "management": None}
    )
    sys.exit(run_demo(settings, text, repeat, stopped, calm=calm))


def _loaded_for_spark(topology: str, settings: Settings, options: Iterable[str] = ()) -> Topology:
    """The topology, which can travel to Spark. Raises UsageError and SparkJobsError."""
    from tiercel.spark_jobs.spark.travel import check_travel  # noqa: PLC0415 - Arrow and numpy take a moment
    from tiercel.workers.loading import (  # noqa: PLC0415
        load_topology,
        spark_options_of,
        with_spark_options,
    )

    loaded = with_spark_options(
        load_topology(topology, settings.spout_tasks), spark_options_of(options)
    )
    check_travel(loaded)
    return loaded


queue_commands.add_to(app)
monitor_commands.add_to(app)
topology_commands.add_to(app)


def main() -> None:
    """Entry point of the command ``tiercel``."""
    with one_line_errors():
        app()
