"""The servers of a run: those that are named, or private ones that end with it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tiercel.acker.errors import AckerError
from tiercel.compose.embedded import EmbeddedServices
from tiercel.compose.errors import ServiceStartError, ServiceStoppedError
from tiercel.compose.server import EmbeddedServer
from tiercel.queues.queue_spout import QueueSpout
from tiercel.spark_jobs.bolts.queue_sink import QueueSink
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.config import Settings
from tiercel.workers.control.contract import State
from tiercel.workers.control.redis_control import RedisControl
from tiercel.workers.errors import ConfigError
from tiercel.workers.local.addresses import Claim, claimed
from tiercel.workers.local.kept import kept_folder

log = logging.getLogger(__name__)

# Between two looks at whether the private servers run.
_LOOK_S = 0.5


@contextmanager
def servers(
    settings: Settings,
    topology: Topology,
    *,
    keep: Path | None = None,
    stopped: threading.Event | None = None,
) -> Iterator[Settings]:
    """Yield the settings with the addresses of both servers, to the one run of this topology here.

    Those that are given, or private ones that end with the block. ``keep`` is a folder in which
    the data of private ones stay; ``stopped`` breaks their start off: ServiceStoppedError.
    """
    if settings.amqp and settings.redis:
        if keep is not None:
            raise ConfigError(
                "--keep keeps the data of private servers, and both servers are named: leave it "
                "out, or --amqp and --redis (TIERCEL_AMQP and TIERCEL_REDIS)"
            )
        with claimed(topology.name, at=settings.redis):
            yield settings
    elif settings.amqp or settings.redis:
        missing = "--redis (or TIERCEL_REDIS)" if settings.amqp else "--amqp (or TIERCEL_AMQP)"
        raise ConfigError(
            f"only one of the two servers is named: give {missing} too, or neither for private ones"
        )
    else:
        with claimed(topology.name, _queues_of(topology)) as claim, ExitStack() as stack:
            kept = None if keep is None else stack.enter_context(kept_folder(keep))
            yield stack.enter_context(_private(settings, topology, claim, kept, stopped))


@contextmanager
def _private(
    settings: Settings,
    topology: Topology,
    claim: Claim,
    kept: Path | None,
    stopped: threading.Event | None,
) -> Iterator[Settings]:
    log.info(
        "starting a private RabbitMQ and a private Redis", extra={"event": "services_starting"}
    )
    with EmbeddedServices(kept, stopped) as services:
        found = settings.with_services(
            services.amqp_url, services.redis_url, services.management_url
        )
        with claim.announced(found):
            _say(found, claim, kept)
            with _started_again(services, stopped or threading.Event()):
                yield found
        if kept is not None:
            _take_back_a_kill(found, topology)


@contextmanager
def _started_again(services: EmbeddedServices, stopped: threading.Event) -> Iterator[None]:
    """Start a server that dies again while the block runs, at its address.

    One that cannot be started sets ``stopped``, and its ServiceStartError is raised after the
    block.
    """
    over = threading.Event()
    failed: list[ServiceStartError] = []

    def watch() -> None:
        try:
            while not over.wait(_LOOK_S):
                for server in (services.rabbitmq, services.redis):
                    if not server.running:
                        _start_again(server, over)
        except ServiceStoppedError:
            pass
        except ServiceStartError as error:
            failed.append(error)
            stopped.set()

    watching = threading.Thread(target=watch, name="private servers", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
    if failed:
        raise failed[0]


def _start_again(server: EmbeddedServer, over: threading.Event) -> None:
    log.error(
        "the private %s has died; it is started again, with what it kept",
        server.name,
        extra={"event": "service_died"},
    )
    server.launch()
    server.wait_until_ready(over)
    log.info("the private %s is back at its address", server.name, extra={"event": "service_back"})


def _say(found: Settings, claim: Claim, kept: Path | None) -> None:
    page = urlsplit(found.management or "")
    log.info(
        "both servers are ready: AMQP %s, Redis %s, RabbitMQ's page http://%s:%s/; their passwords "
        "are in %s while this runs",
        redact(found.amqp or ""),
        redact(found.redis or ""),
        page.hostname,
        page.port,
        claim.path,
        extra={"event": "services_ready"},
    )
    if kept is None:
        log.info(
            "what is in them ends with this run, by Ctrl-C: --keep FOLDER would keep it",
            extra={"event": "data_ends"},
        )
    else:
        log.info(
            "what is in them stays in %s when this run ends, by Ctrl-C, and --keep %s goes on "
            "with it",
            kept,
            kept,
            extra={"event": "data_kept"},
        )


def _take_back_a_kill(found: Settings, topology: Topology) -> None:
    """Let a later run start: ``tiercel kill`` can take its order back only from a Redis that
    is there.
    """
    with (
        suppress(AckerError),
        closing(RedisControl(found.redis_urls[0], topology.name)) as control,
    ):
        if control.state() is State.KILLED:
            control.order(State.ACTIVE)


def _queues_of(topology: Topology) -> tuple[str, ...]:
    """Return the queues that the topology reads, and those that it writes by name."""
    read = [
        spec.spout.queue.name
        for spec in topology.spouts.values()
        if isinstance(spec.spout, QueueSpout)
    ]
    written = [
        spec.bolt.queue for spec in topology.bolts.values() if isinstance(spec.bolt, QueueSink)
    ]
    return (*read, *(queue for queue in written if isinstance(queue, str)))
