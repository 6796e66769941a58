"""One spout task with all its parts: connects a spout to its ledger, inboxes and counters."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from datetime import timedelta

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ids import RootIds
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.metrics.contract import Tally
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis_ledger import open_ledger
from tiercel.queues import outage
from tiercel.queues.queue_spout import QueueSpout
from tiercel.spark_jobs.process.interpreter import freeze_startup_objects, take_turns_often
from tiercel.spark_jobs.topology.graph import SpoutSpec, Topology, ledger_spec_of
from tiercel.spark_jobs.tracing.process import flush, start
from tiercel.workers.config import otel_settings
from tiercel.workers.control.presence import Lease, Presence, running_readers
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry
from tiercel.workers.errors import UsageError
from tiercel.workers.spout.admission import Admission, Shape
from tiercel.workers.spout.collector import TaskCollector
from tiercel.workers.spout.loop import Orders, SpoutParts, SpoutSettings, SpoutTask
from tiercel.workers.spout.outbox import Outbox
from tiercel.workers.spout.outcomes import OutcomeReader
from tiercel.workers.spout.spans import SpoutSpans
from tiercel.workers.spout.trees import OutcomeTeller

log = logging.getLogger(__name__)


class SpoutProcess:
    """The process of ``tiercel spout``."""

    def __init__(  # noqa: PLR0913 - the task, and its servers
        self,
        topology: Topology,
        component: str,
        task_index: int,
        *,
        amqp_url: str,
        redis_urls: tuple[str, ...],
        management_url: str | None = None,
        attend: Callable[[Presence], bool] = lambda _presence: True,
        taker: Callable[[], str] = lambda: "another worker",
    ) -> None:
        """``attend`` and ``taker`` are passed to ``Orders``.

        Raises UsageError if the topology has no such spout task.
        """
        self._spec = spout_spec(topology, component, task_index)
        self._topology = topology
        self._component = component
        self._name = f"{component}-{task_index}"
        self._task_id = topology.task_ids(component)[task_index]
        self._tally = Tally(RedisMetrics(redis_urls[0], topology.name), component, self._task_id)
        self._registry = Registry(redis_urls[0])
        self._orders = Orders(
            RedisControl(redis_urls[0], topology.name), self._announce, attend, taker
        )
        self.task = self._make_task(redis_urls)
        settings = topology.config_of(component).as_mapping()
        # As with bolts, the spout's own settings override the addresses: it may use another broker,
        # about which the HTTP API of this one knows nothing, and whose login is none of its
        # business.
        if settings.get("amqp_url", amqp_url) != amqp_url:
            management_url = None
        self._config = {
            "amqp_url": amqp_url,
            "redis_url": redis_urls[0],
            "management_url": management_url,
            **settings,
        }

    @property
    def dismissed(self) -> bool:
        """True if the task ended because another worker has taken it."""
        return self._orders.dismissed

    def run(self) -> None:
        """Work until ``task.stop()``. Raises errors that need an operator."""
        outage.name_process(f"spout worker {self._name}")
        try:
            self._announce()
            self._name_rivals()
        except RedisUnavailableError as error:
            log.warning(
                "%s; commands will not find the topology",
                error,
                extra={"event": "topology_not_noted"},
            )
        context = self._topology.spout_context_of(
            self._task_id, wake=self.task.wake, count=self._tally.add
        )
        freeze_startup_objects()
        take_turns_often()
        try:
            self.task.run(self._config, context)
        finally:
            flush()

    def _announce(self) -> None:
        self._registry.announce_new(self._topology)

    def _name_rivals(self) -> None:
        """Warn if another topology reads the queue: each message reaches only one of the two."""
        spout = self._spec.spout
        if not isinstance(spout, QueueSpout):
            return
        readers = running_readers(str(self._config["redis_url"]), spout.queue.name)
        for rival in (name for name in readers if name != self._topology.name):
            log.warning(
                "topology %s reads queue %s too, so each message reaches only one of the two: give "
                "each a queue of its own, bound to one exchange",
                rival,
                spout.queue.name,
                extra={"event": "queue_shared", "queue": spout.queue.name},
            )

    def _make_task(self, redis_urls: tuple[str, ...]) -> SpoutTask:
        topology = self._topology
        config = topology.config_of(self._component)
        ledger_spec = ledger_spec_of(topology, redis_urls)
        timeout = ledger_spec.message_timeout
        ledger = open_ledger(ledger_spec)
        collector = TaskCollector(
            topology,
            self._component,
            self._task_id,
            self._tally,
            RootIds(timeout or timedelta(seconds=30)) if config.ackers else None,
        )
        parts = SpoutParts(
            teller=self._make_teller(collector),
            collector=collector,
            ledger=ledger,
            outbox=Outbox(
                ledger=ledger,
                inboxes=open_inboxes(ledger_spec),
                lease=Lease(RedisPresences(redis_urls[0], topology.name)),
                owner=self._task_id,
                topology=topology,
            ),
            outcomes=OutcomeReader(ledger, self._task_id),
            orders=self._orders,
            tally=self._tally,
        )
        settings = SpoutSettings(
            message_timeout=timeout,
            admission=Admission.for_topology(config.max_spout_pending, timeout, Shape.of(topology)),
            grace=timedelta(seconds=config.shutdown_grace_secs),
        )
        return SpoutTask(parts, settings)

    def _make_teller(self, collector: TaskCollector) -> OutcomeTeller:
        """Return the teller; with traces it also ends the spans that the collector begins."""
        teller = OutcomeTeller(copy.deepcopy(self._spec.spout))
        tracing = start(otel_settings(), self._topology.name)
        if tracing is None:
            return teller
        spans = SpoutSpans(tracing, teller, self._component, self._task_id)
        collector.begin_spans = spans.begin
        return spans


def spout_spec(topology: Topology, component: str, task_index: int = 0) -> SpoutSpec:
    """Return the spout's spec; raises UsageError if the spout or its task does not exist."""
    spec = topology.spouts.get(component)
    if spec is None:
        raise UsageError(
            f"{topology.name} has no spout {component!r}; its spouts are "
            f"{', '.join(topology.spouts)}"
        )
    if not 0 <= task_index < spec.parallelism:
        raise UsageError(
            f"spout {component!r} has tasks 0 to {spec.parallelism - 1}, there is no task "
            f"{task_index}"
        )
    return spec
