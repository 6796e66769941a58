"""The commands that start Spark: ``driver``, ``prepare``."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired

import typer

from tiercel.spark_jobs.errors import SparkEndedError
from tiercel.spark_jobs.spark.session import end_java, make_class_archive
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.cli.options import (
    Amqp,
    Child,
    Conf,
    Executors,
    Level,
    Log,
    Master,
    Redis,
    TopologyName,
    load_settings,
)
from tiercel.workers.config import check_spark_python, use_this_python_for_spark
from tiercel.workers.driver.deletion_cost import ApiServer, WorkerPods
from tiercel.workers.driver.jvm_output import as_log_records
from tiercel.workers.driver.process import Driver, DriverOptions, worker_logs
from tiercel.workers.lifecycle import Heartbeat, name_servers, on_signals
from tiercel.workers.loading import load_for_spark, module_of, spark_options_of, with_executors
from tiercel.workers.terminal import say

commands = typer.Typer()
logger = logging.getLogger(__name__)

# Exit code that makes Docker, Kubernetes and ``tiercel run`` restart the driver; 2 means that an
# operator must act.
_START_AGAIN = 1
# Less than the five seconds that `tiercel run` leaves a worker after its grace period.
_JAVA_ENDS_WITHIN_S = 4.0


@commands.command()
def driver(  # noqa: PLR0913 - one parameter an option
    topology: TopologyName,
    *,
    amqp: Amqp = None,
    redis: Redis = None,
    master: Master = None,
    conf: Conf = None,
    executors: Executors = None,
    log: Log = None,
    log_level: Level = None,
    child: Child = False,
) -> None:
    """Run the bolts of a topology on Spark.

    It needs RabbitMQ's address only if a bolt publishes.
    """
    with as_log_records() as mark:
        settings = load_settings(
            "driver", amqp=amqp, redis=redis, master=master, executors=executors, log=log,
            log_level=log_level,
        )  # fmt: skip
        settings = settings.required("redis")
        check_spark_python(settings.master)
        use_this_python_for_spark(Path.cwd())

        loaded = load_for_spark(topology, settings.spout_tasks, spark_options_of(conf or ()))
        loaded = with_executors(loaded, settings.executors)
        if not child:
            name_servers(f"driver of {topology} on Spark {settings.master},", settings)
        options = DriverOptions(
            module=module_of(topology),
            logs=worker_logs(settings, mark),
            heartbeat=Heartbeat(settings.heartbeat),
            pods=_pods(loaded, settings.worker_pods),
        )
        _run(Driver(loaded, settings.redis_urls, settings.master, settings.amqp, options=options))


def _pods(topology: Topology, labels: str | None) -> WorkerPods | None:
    return None if labels is None else WorkerPods(topology.name, labels, ApiServer.of_this_pod())


def _run(process: Driver) -> None:
    on_signals(process.stop)
    try:
        process.run()
    except SparkEndedError as error:
        logger.error("%s", error, extra={"event": "spark_ended"})
        sys.exit(_START_AGAIN)
    # `tiercel run` kills what this process leaves behind, and the JVM would leave its files.
    with suppress(TimeoutExpired, OSError):
        end_java(_JAVA_ENDS_WITHIN_S)
    logger.info("the driver has stopped", extra={"event": "stopped"})


@commands.command()
def prepare() -> None:
    """Make Spark's JVM start in half the CPU time from now on.

    Starts it once, and keeps its classes in a file beside Spark.
    """
    use_this_python_for_spark(Path.cwd())

    with as_log_records():
        path = make_class_archive()
    say(f"wrote {path} ({path.stat().st_size / 1e6:.0f} MB)")
