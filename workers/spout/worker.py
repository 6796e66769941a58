"""The worker that ``tiercel spout`` runs: it takes a free task unless it is given one.

So any number of identical workers may be started and stopped at any time: a worker that finds all
tasks taken waits in reserve.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from tiercel.acker.errors import RedisUnavailableError
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.whereabouts import Whereabouts, of_this_process, packed_host
from tiercel.workers.config import Settings, python_path
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.lifecycle import Heartbeat, on_signals, patiently
from tiercel.workers.processes import Child, Supervisor
from tiercel.workers.spout.process import SpoutProcess, spout_spec

log = logging.getLogger(__name__)

_LOOK_S = 1.0
# Time for a worker to give messages back and close its connections after the grace time.
_EXTRA_GRACE = timedelta(seconds=5)


class SpoutWorker:
    """Worker of one spout: takes a free task, and takes another one if it loses that task."""

    def __init__(self, topology: Topology, component: str, settings: Settings) -> None:
        """Raises UsageError if the topology has no such spout."""
        spout_spec(topology, component)
        self._topology = topology
        self._component = component
        self._settings = settings
        # Unique to this process: the process it replaces may only be suspended and resume later.
        self._name = secrets.token_hex(12)
        self._seats = SpoutSeats(
            RedisPresences(settings.redis_urls[0], topology.name),
            of_this_process(topology.code),
        )
        self._control = RedisControl(settings.redis_urls[0], topology.name)
        self._heartbeat = Heartbeat(settings.heartbeat)
        self._stopped = threading.Event()
        self._process: SpoutProcess | None = None

    def stop(self) -> None:
        """Start the shutdown. Thread-safe, and safe in a signal handler."""
        self._stopped.set()
        process = self._process
        if process is not None:
            process.task.stop()

    def run(self) -> None:
        """Work until ``stop``, or until the topology is killed.

        Raises errors that need an operator.
        """
        task_ids = self._topology.task_ids(self._component)
        while (task_id := self._wait_for(task_ids)) is not None:
            process = self._process = SpoutProcess(
                self._topology,
                self._component,
                task_ids.index(task_id),
                amqp_url=self._settings.amqp or "",
                redis_urls=self._settings.redis_urls,
                management_url=self._settings.management,
                attend=partial(self._attend, task_id),
                taker=partial(_taker_of, self._seats, task_id),
            )
            if self._stopped.is_set():  # ``stop`` was called before the process existed
                process.task.stop()
            try:
                process.run()
            finally:
                with suppress(RedisUnavailableError):
                    self._seats.leave(self._name, task_id)
            if not process.dismissed:
                return

    def _wait_for(self, task_ids: range) -> int | None:
        """Wait for a free task and take it; return None after ``stop`` or a kill."""
        said = False
        while not self._stopped.is_set():
            self._heartbeat.beat()
            # Check the state first: the kill command does not wait for workers in reserve, so this
            # worker could take over the task of a worker that has just obeyed the kill.
            if patiently(self._stopped, self._control.state) is State.KILLED:
                log.info("killed: ending", extra={"event": "killed"})
                return None
            task_id = patiently(self._stopped, self._seats.take, self._name, task_ids)
            if task_id is not None:
                name = f"{self._component}-{task_ids.index(task_id)}"
                log.info(
                    "this worker is %s now", name, extra={"event": "task_claimed", "task": name}
                )
                return task_id
            if not said and not self._stopped.is_set():
                log.info(
                    "each of the %d tasks already has a worker; standing by",
                    len(task_ids),
                    extra={"event": "in_reserve"},
                )
                said = True
            self._stopped.wait(_LOOK_S)
        return None

    def _attend(self, task_id: int, presence: Presence) -> bool:
        self._heartbeat.beat()
        return self._seats.report(self._name, task_id, presence)


def run_spouts(
    name: str, topology: Topology, settings: Settings, component: str | None, task_index: int | None
) -> None:
    """Run a worker of this spout, or one of each spout, until a signal arrives.

    The worker runs ``task_index``, which exists, or any free task if that is None.
    """
    if component is None and len(topology.spouts) > 1:
        stopped = threading.Event()
        on_signals(stopped.set)
        if not run_each(
            name,
            list(topology.spouts),
            settings,
            timedelta(seconds=topology.config.shutdown_grace_secs),
            stopped,
        ):
            sys.exit(2)
        return
    component = component or next(iter(topology.spouts))
    if task_index is not None:
        _run_task(topology, component, task_index, settings)
        return
    worker = SpoutWorker(topology, component, settings)
    on_signals(worker.stop)
    worker.run()


def _run_task(topology: Topology, component: str, task_index: int, settings: Settings) -> None:
    """Run this task until a signal arrives; take it from any worker that has it."""
    heartbeat = Heartbeat(settings.heartbeat)
    presences = RedisPresences(settings.redis_urls[0], topology.name)
    seats = SpoutSeats(presences, of_this_process(topology.code))
    name = secrets.token_hex(12)
    task_id = topology.task_ids(component)[task_index]

    def attend(presence: Presence) -> bool:
        heartbeat.beat()
        return seats.report(name, task_id, presence, by_force=True)

    process = SpoutProcess(
        topology,
        component,
        task_index,
        amqp_url=settings.amqp or "",
        redis_urls=settings.redis_urls,
        management_url=settings.management,
        attend=attend,
        taker=partial(_taker_of, seats, task_id),
    )
    on_signals(process.task.stop)
    with suppress(RedisUnavailableError):
        _say_whose(f"{component}-{task_index}", seats, task_id)
    try:
        process.run()
    finally:
        with suppress(RedisUnavailableError):
            seats.leave(name, task_id)


def _taker_of(seats: SpoutSeats, task_id: int) -> str:
    """Return the name of the worker that has the task."""
    found = _attendant(seats, task_id)
    return "another worker" if found is None else f"process {found.pid} on {found.host}"


def _say_whose(name: str, seats: SpoutSeats, task_id: int) -> None:
    """Log if a worker that lives has the task, which this process will take from it."""
    found = _attendant(seats, task_id)
    if found is None or (found.host == packed_host() and not Path(f"/proc/{found.pid}").exists()):
        return
    log.warning(
        "taking %s from process %d on %s, which works on it; end this one if that is not meant",
        name,
        found.pid,
        found.host,
        extra={"event": "task_taken", "task": name, "pid": found.pid, "host": found.host},
    )


def _attendant(seats: SpoutSeats, task_id: int) -> Whereabouts | None:
    found = seats.present(range(task_id, task_id + 1)).get(task_id)
    return None if found is None else found.whereabouts


def run_each(
    name: str, spouts: Sequence[str], settings: Settings, grace: timedelta, stopped: threading.Event
) -> bool:
    """Run one child process per spout until ``stopped`` is set or all children have ended.

    Return False if a child refused to work.
    """
    heartbeat = Heartbeat(settings.heartbeat)
    with Supervisor(grace + _EXTRA_GRACE) as supervisor:
        watched = [_started(supervisor, name, spout, settings) for spout in spouts]
        while not supervisor.refused and any(
            child.exit_code is None for child in supervisor.children
        ):
            if all(path is not None and _turns(path) for path in watched):
                heartbeat.beat()
            if stopped.wait(_LOOK_S):
                break
        return not supervisor.refused


def _started(supervisor: Supervisor, name: str, spout: str, settings: Settings) -> Path | None:
    watched = settings.heartbeat and settings.heartbeat.with_name(
        f"{settings.heartbeat.name}-{spout}"
    )
    environment = {
        **settings.model_copy(update={"heartbeat": watched}).as_environment(),
        **python_path(Path.cwd()),
    }
    supervisor.start(
        Child(
            f"spout-{spout}",
            [sys.executable, "-m", "tiercel", "spout", name, spout, "--child"],
            environment,
        )
    )
    return watched


def _turns(heartbeat: Path) -> bool:
    with suppress(OSError):
        return time.time() - heartbeat.stat().st_mtime < 10 * _LOOK_S
    return False
