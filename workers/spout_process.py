"""One spout task with everything it needs: joins a topology's spout to its ledger, relay and counters."""

from __future__ import annotations

import copy
import logging
import sys
from datetime import timedelta

from acker import LedgerUnavailableError, RedisMetrics, open_ledger
from queues import QueueSpout, SpoutContext
from spark_jobs.emission import SpoutEmitter
from spark_jobs.job import ledger_spec_of, open_relay
from spark_jobs.levels import plan_topology
from spark_jobs.topology import Topology
from workers.admission import Admission
from workers.errors import UsageError
from workers.outbox import Outbox
from workers.registry import QueueRegistry
from workers.spout_task import SpoutSettings, SpoutTask
from workers.tally import Tally

log = logging.getLogger(__name__)

_ALL_LANES = sys.maxsize
"""A spout writes a relay lane a bolt task; how many of them share a Spark partition is the driver's business."""


class SpoutProcess:
    """What ``tiercel spout`` runs."""

    def __init__(self, topology: Topology, component: str, task_index: int, *, amqp_url: str, redis_urls: tuple[str, ...]) -> None:
        """Raises UsageError if the topology has no such spout task."""
        spec = topology.spouts.get(component)
        if spec is None:
            raise UsageError(f"{topology.name} has no spout {component!r}; its spouts are {', '.join(topology.spouts)}")
        if not 0 <= task_index < spec.parallelism:
            raise UsageError(f"spout {component!r} has tasks 0 to {spec.parallelism - 1}, there is no task {task_index}")
        redis_url = redis_urls[0]
        plan = plan_topology(topology, max_lanes=_ALL_LANES)
        config = topology.config_of(component)
        ledger_spec = ledger_spec_of(plan, redis_urls)
        ledger = open_ledger(ledger_spec)
        task_id = topology.task_ids(component)[task_index]
        tally = Tally(RedisMetrics(redis_url, topology.name), component, task_id)
        settings = SpoutSettings(
            message_timeout=ledger_spec.message_timeout,
            admission=Admission.for_topology(config.max_spout_pending, ledger_spec.message_timeout),
            tracked=config.ackers > 0,
            grace=timedelta(seconds=config.shutdown_grace_secs),
        )
        self.task = SpoutTask(
            copy.deepcopy(spec.spout),
            SpoutEmitter(plan, component, task_id),
            ledger,
            Outbox(ledger, open_relay(redis_url, plan), task_id),
            tally,
            settings,
        )
        self._context = SpoutContext(
            topology=topology.name,
            component=component,
            task_id=task_id,
            task_index=task_index,
            parallelism=spec.parallelism,
            wake=self.task.wake,
            count=tally.add,
        )
        self._config = {**config.as_mapping(), "amqp_url": amqp_url, "redis_url": redis_url}

        self._registry = QueueRegistry(redis_url)
        self._queues = [spec.spout.queue.name] if isinstance(spec.spout, QueueSpout) else []

    def run(self) -> None:
        """Work until ``task.stop()``; raises what a person must act on."""
        try:
            self._registry.announce(self._context.topology, self._queues)
        except LedgerUnavailableError as error:
            log.warning("%s; tiercel depths will not know its queues", error, extra={"event": "queues_not_noted"})
        self.task.run(self._config, self._context)
