"""The servers of a run: named ones, or private ones that end with it."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tiercel.acker.errors import AckerError, RedisUnavailableError
from tiercel.compose.embedded import EmbeddedServices
from tiercel.compose.errors import ServiceStartError, ServiceStoppedError
from tiercel.compose.server import EmbeddedServer
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected
from tiercel.queues.errors import BrokerUnavailableError
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.config import Settings
from tiercel.workers.control.contract import State
from tiercel.workers.control.redis_control import RedisControl
from tiercel.workers.control.registry import graph_of
from tiercel.workers.errors import ConfigError
from tiercel.workers.lifecycle import name_servers
from tiercel.workers.local.addresses import Claim, RunNote, claimed

# File that marks a folder as tiercel's for later runs; holds the pid of the run.
_MARK = "tiercel-run.pid"
# RabbitMQ's start script splits other paths, and Redis' configuration has its own quoting.
_PLAIN = re.compile(r"[\w./+@:=~-]+", re.ASCII)
log = logging.getLogger(__name__)

# Interval between two checks that the private servers run.
_LOOK_S = 0.5


@contextmanager
def servers(
    settings: Settings,
    topology: Topology,
    *,
    keep: Path | None = None,
    stopped: threading.Event,
) -> Iterator[Settings]:
    """Yield the settings with the addresses of both servers; claim the topology on this machine.

    Without addresses the servers are private and end with the block; ``keep`` is a folder that
    keeps their data. Raises ServiceStoppedError if ``stopped`` is set while they start.
    """
    ending = partial(_is_killed, settings, stopped)
    if settings.amqp and settings.redis:
        if keep is not None:
            raise ConfigError(
                "--keep keeps the data of private servers, but both servers are named: leave out "
                "--keep, or --amqp and --redis (TIERCEL_AMQP and TIERCEL_REDIS)"
            )
        with claimed(topology.name, at=settings.redis, is_ending=ending):
            _check_logins(settings, topology.name)
            yield settings
    elif settings.amqp or settings.redis:
        missing = "--redis (or TIERCEL_REDIS)" if settings.amqp else "--amqp (or TIERCEL_AMQP)"
        raise ConfigError(
            f"only one of the two servers is named: give {missing} too, or neither for private ones"
        )
    else:
        graph = graph_of(topology)
        queues = (*graph.queues, *graph.sinks)
        with claimed(topology.name, queues, is_ending=ending) as claim, ExitStack() as stack:
            kept = None if keep is None else stack.enter_context(kept_folder(keep))
            yield stack.enter_context(_private(settings, topology, claim, kept, stopped))


def _is_killed(settings: Settings, stopped: threading.Event, note: RunNote) -> bool:
    """Return True if a run ends by itself soon, after ``tiercel kill``."""
    if stopped.is_set():
        raise ServiceStoppedError("stopped while another run ended")
    if note.ending:
        return True
    urls = (note.redis,) if note.redis else settings.redis_urls
    with suppress(AckerError):
        for url in urls[:1]:
            with closing(RedisControl(url, note.topology)) as control:
                # The order is taken back once the processes have ended.
                return control.state() is State.KILLED or control.was_killed()
    return False


def _check_logins(settings: Settings, topology: str) -> None:
    """Log the servers; raise the error of one that refuses its address, as each process would.

    The processes wait for a server that does not answer.
    """
    name_servers(topology, settings)
    with (
        suppress(RedisUnavailableError),
        closing(RedisControl(settings.redis_urls[0], topology)) as control,
    ):
        control.state()
    with (
        suppress(BrokerUnavailableError),
        connected(Address.parse(settings.amqp or ""), "tiercel run"),
    ):
        pass


@contextmanager
def _private(
    settings: Settings,
    topology: Topology,
    claim: Claim,
    kept: Path | None,
    stopped: threading.Event,
) -> Iterator[Settings]:
    log.info(
        "starting a private RabbitMQ and a private Redis", extra={"event": "services_starting"}
    )
    with EmbeddedServices(kept, stopped, claim.path) as services:
        found = settings.with_services(
            services.amqp_url, services.redis_url, services.management_url
        )
        with claim.announced(found):
            _say(found, claim, kept)
            with _started_again(services, stopped):
                yield found
        if kept is not None:
            _take_back_a_kill(found, topology)


@contextmanager
def _started_again(services: EmbeddedServices, stopped: threading.Event) -> Iterator[None]:
    """Restart servers that die during the block, at the same address.

    If a restart fails, sets ``stopped`` and raises the ServiceStartError after the block.
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
        "the private %s has died; restarting it with the data that it kept",
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
            "their data is deleted when this run ends (Ctrl-C); --keep FOLDER keeps it",
            extra={"event": "data_ends"},
        )
    else:
        log.info(
            "their data stays in %s when this run ends (Ctrl-C); --keep %s continues with it",
            kept,
            kept,
            extra={"event": "data_kept"},
        )


def _take_back_a_kill(found: Settings, topology: Topology) -> None:
    """Let a later run start: the order of ``tiercel kill`` would stay in the kept Redis."""
    with (
        suppress(AckerError),
        closing(RedisControl(found.redis_urls[0], topology.name)) as control,
    ):
        if control.state() is State.KILLED:
            control.order(State.ACTIVE)


@contextmanager
def kept_folder(folder: Path) -> Iterator[Path]:
    """Yield the absolute path of a folder, which is made if missing and locked during the block.

    Raises ConfigError if the folder is unsuitable, or if another run uses it.
    """
    path = folder.expanduser().absolute()
    if not _PLAIN.fullmatch(str(path)):
        raise ConfigError(
            f"--keep {str(path)!r}: name a folder whose path has only letters, digits and "
            ". _ + @ : = ~ - in it, and no blanks"
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = _mark(path)
    except OSError as error:
        raise ConfigError(f"--keep {path}: {error.strerror}") from error
    try:
        _lock(path, mark)
        yield path
    finally:
        os.close(mark)


def _mark(path: Path) -> int:
    if path.stat().st_uid != os.getuid():
        raise ConfigError(f"--keep {path}: the folder is another user's")
    if any(path.iterdir()) and not (path / _MARK).is_file():
        raise ConfigError(
            f"--keep {path}: it has other files: name a new or empty folder, or one that an "
            "earlier run has kept"
        )
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path / _MARK, flags, 0o600)


def _lock(path: Path, mark: int) -> None:
    """Lock the folder until the mark is closed or this process ends."""
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(mark, 20, 0).decode(errors="replace").strip()
        raise ConfigError(f"--keep {path}: process {pid} uses it: end that run first") from None
    os.ftruncate(mark, 0)
    os.pwrite(mark, f"{os.getpid()}\n".encode(), 0)
