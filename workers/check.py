"""Checks of ``tiercel check``: settings, servers and a topology, before anything starts.

Nothing is changed: no queue is declared, no message is taken, no key is written. What the processes
check when they start is checked here by the same functions. A check that needs a server is left out
while that server is away, so that one fault is one line.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from typing import Any, Literal

from tiercel.acker.errors import AckerError
from tiercel.acker.layout import shard_prefix
from tiercel.acker.redis.clients import (
    connect,
    evictions,
    forbidden_commands,
    is_full,
    look_at_server,
    place_of,
)
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import (
    connected,
    refused_to_bind,
    refused_to_dead_letter,
    refused_to_declare,
    refused_to_publish,
    refused_to_read,
)
from tiercel.queues.broker.declare import (
    Binding,
    Declared,
    WorkQueue,
    check_server,
    consumer_timeout,
    exchange_misfit,
    find_exchange,
    look_at_work_queue,
    server_property,
    short_timeout,
    timeout_arguments,
    work_queue_arguments,
)
from tiercel.queues.broker.depths import DepthReader
from tiercel.queues.broker.management import (
    ManagementSilentError,
    Policies,
    delay_queue,
    delays_end,
    look_at_interface,
    losses,
    policy_limit,
    policy_timeout,
    read_policies,
)
from tiercel.queues.errors import ExchangeMissingError, QueueMissingError, QueuesError
from tiercel.queues.nouns import counted
from tiercel.queues.queue_spout import QueueSpout
from tiercel.queues.retry import BrokerLimit
from tiercel.spark_jobs.bolts.queue_sink import QueueSink
from tiercel.spark_jobs.errors import SparkJobsError
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.spark.session import check_versions
from tiercel.spark_jobs.spark.settings import memory_warning, settings_of
from tiercel.spark_jobs.state.redis_store import check_layout
from tiercel.spark_jobs.topology.bolt_settings import stateful_bolts
from tiercel.spark_jobs.topology.graph import (
    BoltSpec,
    SpoutSpec,
    Topology,
    check_has_bolts,
    ledger_spec_of,
)
from tiercel.workers.config import Settings, check_hadoop, check_spark_python, exposed, spark_python
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Holder, Lease, running_readers
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.errors import ConfigError, WorkersError
from tiercel.workers.loading import load_for_spark
from tiercel.workers.local.addresses import with_run
from tiercel.workers.spout.outbox import Arrangement

_EXPECTED = (WorkersError, AckerError, QueuesError, SparkJobsError)
# Clocks that differ by less do no harm; the HTTP API tells whole seconds.
_CLOCK_S = 2.0
_CONNECT_S = 3.0
_SPARK_PORT = 7077
# A key that no part of a topology uses, to ask for rights.
_PROBE = "check"


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The result of one check."""

    grade: Severity
    # The thing that was checked, such as ``queue orders``.
    subject: str
    # One line; for a fault, what to do.
    said: str


def exposures(given: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Check who can read the files that settings come from; ``given`` is as for ``exposed``."""
    return (_warning("settings", line) for line in exposed(given))


@dataclass(kw_only=True)
class _Scope:
    """The things to check, and the facts found so far."""

    settings: Settings
    # None: none is named, or it could not be loaded.
    topology: Topology | None = None
    redis_answers: bool = False

    @property
    def stateful(self) -> list[str]:
        """The bolts with a state."""
        return [] if self.topology is None else stateful_bolts(self.topology)


def findings(settings: Settings, name: str | None) -> Iterator[CheckResult]:
    """Check the settings, and the topology ``MODULE:TOPOLOGY`` if one is named.

    If no server is named, those of the topology's own private run are meant, if there is one: the
    servers of other private runs end with them.
    """
    scope = _Scope(settings=settings)
    if name is not None:
        yield from _guarded("topology", _check_code(scope, name))
    if scope.topology is not None:
        scope.settings, _ = with_run(settings, topology=scope.topology.name, others=False)
    if not scope.settings.amqp and not scope.settings.redis:
        yield _ok("settings", "no server is named: only tiercel run works, with private servers")
    else:
        yield from _check_redis(scope)
        yield from _check_rabbitmq(scope)
    yield from _guarded("spark", _check_spark(scope))


def _ok(subject: str, said: str) -> CheckResult:
    return CheckResult(grade=Severity.OK, subject=subject, said=said)


def _warning(subject: str, said: str) -> CheckResult:
    return CheckResult(grade=Severity.WARNING, subject=subject, said=redact(said))


def _error(subject: str, said: object) -> CheckResult:
    return CheckResult(grade=Severity.ERROR, subject=subject, said=redact(f"{said}"))


def _guarded(subject: str, checks: Iterator[CheckResult]) -> Iterator[CheckResult]:
    """Yield the findings; an expected error is the last one."""
    try:
        yield from checks
    except _EXPECTED as error:
        yield _error(subject, error)


def _check_code(scope: _Scope, name: str) -> Iterator[CheckResult]:
    topology = load_for_spark(name, scope.settings.spout_tasks)
    check_has_bolts(topology)
    scope.topology = topology
    spouts = counted(len(topology.spouts), "spout")
    yield _ok(
        "topology", f"{topology.name} has {spouts} and {counted(len(topology.bolts), 'bolt')}"
    )


# -- Redis -----------------------------------------------------------------------------------------


def _check_redis(scope: _Scope) -> Iterator[CheckResult]:
    urls = scope.settings.redis_urls
    name = scope.topology.name if scope.topology else _PROBE
    if not urls:
        yield from _guarded("redis", _missing(scope.settings, "redis"))
        return
    scope.redis_answers = True
    for number, url in enumerate(urls):
        checks = _check_server(url, shard_prefix(name, number), scope.stateful)
        for finding in _guarded(f"redis {place_of(url)}", checks):
            scope.redis_answers = scope.redis_answers and finding.grade is not Severity.ERROR
            yield finding
    if scope.redis_answers:
        yield from _guarded("redis", _check_eviction(scope, name))
        if scope.topology is not None:
            yield from _guarded(
                f"topology {name}", _check_run(urls, scope.topology, scope.stateful)
            )


def _missing(settings: Settings, server: Literal["amqp", "redis"]) -> Iterator[CheckResult]:
    settings.required(server)
    yield from ()


def _check_eviction(scope: _Scope, name: str) -> Iterator[CheckResult]:
    urls = scope.settings.redis_urls
    shards = ledger_spec_of(scope.topology, urls).shards if scope.topology else 1
    for line in evictions(urls, name, max(shards, len(urls)), scope.stateful):
        yield (_error if scope.stateful else _warning)("redis", line)


def _check_server(url: str, prefix: str, stateful: Sequence[str]) -> Iterator[CheckResult]:
    subject = f"redis {place_of(url)}"
    with closing(connect(url, prefix)) as client:
        view = look_at_server(client)
        full = is_full(client)
    yield _ok(subject, f"version {view.version} answers" if view.version else "it answers")
    if view.is_replica:
        yield _error(subject, "it is a replica and takes no writes: name the primary's address")
    elif full:
        yield _error(subject, "its memory is full: raise its maxmemory or free memory")
    # A replica and a full server refuse scripts for another reason.
    elif forbidden := forbidden_commands(url, f"{prefix}{_PROBE}"):
        yield _error(
            subject,
            f"the user may not call {', '.join(forbidden)}: grant these commands on the keys "
            "tiercel:* (ACL SETUSER)",
        )
    yield from _judge_clock(subject, view.ahead_s)
    if view.persists is False and stateful:
        yield _warning(
            subject,
            f"it keeps nothing on disk: a restart loses the state of {', '.join(stateful)}; set "
            "appendonly yes",
        )


def _judge_clock(subject: str, ahead_s: float) -> Iterator[CheckResult]:
    if abs(ahead_s) > _CLOCK_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield _warning(
            subject,
            f"its clock is {abs(ahead_s):.0f} s {way} this machine's: times and ages would be "
            "wrong; set the clocks of both by NTP",
        )


def _check_run(
    urls: tuple[str, ...], topology: Topology, stateful: Sequence[str]
) -> Iterator[CheckResult]:
    subject = f"topology {topology.name}"
    check_layout(ledger_spec_of(topology, urls), stateful)
    with closing(RedisControl(urls[0], topology.name)) as control:
        if control.state() is State.KILLED:
            yield _warning(
                subject, f"it was killed: tiercel activate {topology.name} lets it start again"
            )
    holder = _driver_of(urls[0], topology.name)
    if holder is not None and not Arrangement(topology).understands(holder):
        yield _warning(
            subject,
            "a driver with other components, streams or numbers of tasks is running: restart the "
            "driver and the spout workers with this version",
        )


def _driver_of(redis_url: str, topology: str) -> Holder | None:
    with closing(RedisPresences(redis_url, topology)) as presences:
        return Lease(presences).holder()


# -- RabbitMQ --------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _CheckedBroker:
    """A connection to a broker, and what its HTTP API tells."""

    connection: Any
    address: Address
    url: str
    management_url: str | None
    policies: Policies = field(default_factory=Policies)
    # RabbitMQ takes no messages, not even one that it would refuse.
    alarmed: bool = False


def _check_rabbitmq(scope: _Scope) -> Iterator[CheckResult]:
    """Check the topology's broker, and the brokers that components name in their own settings."""
    amqp = scope.settings.amqp
    if not amqp:
        yield from _guarded("rabbitmq", _missing(scope.settings, "amqp"))
    brokers: dict[str, list[str]] = {amqp: []} if amqp else {}
    for component, url in _users(scope.topology).items():
        if url or amqp:
            brokers.setdefault(url or amqp or "", []).append(component)
    for url, components in brokers.items():
        yield from _guarded("rabbitmq", _check_broker(scope, url, components))


def _users(topology: Topology | None) -> dict[str, str]:
    """Return the components that read or publish, with the broker of their own settings."""
    if topology is None:
        return {}
    spouts = [name for name, spec in topology.spouts.items() if isinstance(spec.spout, QueueSpout)]
    sinks = [name for name, spec in topology.bolts.items() if isinstance(spec.bolt, QueueSink)]
    return {
        name: str(topology.config_of(name).extra.get("amqp_url") or "")
        for name in (*spouts, *sinks)
    }


def _check_broker(scope: _Scope, url: str, components: Sequence[str]) -> Iterator[CheckResult]:
    address = Address.parse(url)
    management = scope.settings.management if url == scope.settings.amqp else None
    with connected(address, "tiercel check") as connection:
        check_server(connection, address)
        version = server_property(connection, "version")
        yield _ok("rabbitmq", f"version {version} answers at {address}")
        broker = _CheckedBroker(
            connection=connection, address=address, url=url, management_url=management
        )
        yield from _check_management(broker)
        publishes = bool(components) and not broker.alarmed
        if publishes and (refused := refused_to_publish(connection, address)):
            yield _error("rabbitmq", refused)
        for name in components:
            yield from _check_component(scope, broker, name)


def _check_component(scope: _Scope, broker: _CheckedBroker, name: str) -> Iterator[CheckResult]:
    if scope.topology is None:
        return
    spec = scope.topology.spec(name)
    if isinstance(spec, SpoutSpec) and isinstance(spec.spout, QueueSpout):
        topology = scope.topology
        queue = replace(
            spec.spout.queue,
            held=topology.held,
            needed=topology.windows_need,
            configured=topology.config.consumer_timeout,
        )
        # A queue that cannot be looked at is one fault: its readers are not asked for then.
        checks = chain(_check_queue(broker, queue), _check_readers(scope, broker, queue))
        yield from _guarded(f"queue {queue.name}", checks)
    elif isinstance(spec, BoltSpec) and isinstance(spec.bolt, QueueSink):
        yield from _guarded(f"bolt {name}", _check_sink(broker, name, spec.bolt))


def _check_management(broker: _CheckedBroker) -> Iterator[CheckResult]:
    if broker.management_url is None:
        yield _ok(
            "management",
            "no address (--management): policies, alarms and RabbitMQ's clock are not checked",
        )
        return
    try:
        found = look_at_interface(broker.management_url, broker.address)
    except ManagementSilentError as error:
        yield _error("management", error)
        return
    cluster = server_property(broker.connection, "cluster_name")
    if cluster and found.cluster and found.cluster != cluster:
        yield _error(
            "management",
            f"it is the address of another RabbitMQ, {found.cluster}, than {cluster} at "
            f"{broker.address}: name that one's",
        )
        return
    yield _ok("management", f"the HTTP API of {found.cluster} answers")
    broker.policies = read_policies(broker.management_url, broker.address)
    if not broker.policies.told:
        yield _warning(
            "management",
            "its user may not see policies, which may delete messages: give it the tag monitoring "
            "and access to the virtual host",
        )
    broker.alarmed = bool(found.alarmed)
    if found.alarmed:
        yield _error(
            "rabbitmq",
            f"a memory or disk alarm of {', '.join(found.alarmed)}: it takes no messages until "
            "there is memory and disk space again",
        )
    if found.clock is not None:
        yield from _judge_clock("rabbitmq", (found.clock - datetime.now(UTC)).total_seconds())


def _check_queue(broker: _CheckedBroker, queue: WorkQueue) -> Iterator[CheckResult]:
    subject = f"queue {queue.name}"
    connection, address = broker.connection, broker.address
    exists, why = True, ""
    try:
        declared, why = look_at_work_queue(
            connection, address, replace(queue, declare=False), broker.management_url
        )
    except QueueMissingError:
        if not queue.declare:
            raise
        exists = False
        declared = _to_be_declared(queue, check_server(connection, address))
        yield _ok(subject, "does not exist yet: the first spout worker declares it")
    yield from _check_rights(broker, queue, exists=exists)
    if why:
        yield (_warning if queue.declare else _ok)(subject, f"is used as it is: {why}")
    policy = policy_timeout(queue.name, broker.policies)
    arguments = declared.arguments or {}
    faults = [
        losses(queue.name, arguments, broker.policies),
        losses(queue.dead, {}, broker.policies),
        policy_limit(queue.name, declared.limit, arguments, broker.policies)[1],
        short_timeout(declared.consumer_timeout, queue, policy),
        delays_end(broker.policies, queue.name),
    ]
    for fault in filter(None, faults):
        yield _warning(subject, fault)
    for binding in queue.bindings:
        yield from _check_binding(broker, queue, binding, exists=exists)


def _check_rights(
    broker: _CheckedBroker, queue: WorkQueue, *, exists: bool
) -> Iterator[CheckResult]:
    subject = f"queue {queue.name}"
    connection, address = broker.connection, broker.address
    declared = (queue.name, queue.dead) if queue.declare else ()
    refusals = [refused_to_declare(connection, address, name) for name in declared]
    if exists:
        refusals.append(refused_to_read(connection, address, queue.name))
    for refused in dict.fromkeys(filter(None, refusals)):
        yield _error(subject, refused)
    if not queue.declare and (refused := refused_to_dead_letter(connection, address, queue.dead)):
        yield _error(subject, f"a message that cannot be processed would stay in it: {refused}")
    later = refused_to_declare(connection, address, delay_queue(queue.name, 100))
    if later and not any(refusals):
        yield _warning(subject, f"a message that a bolt postpones waits in a worker: {later}")


def _to_be_declared(queue: WorkQueue, version: tuple[int, int]) -> Declared:
    timeout = consumer_timeout(
        queue.held, version, queue.name, timeout_arguments(queue.held, version)
    )
    return Declared(
        delays_retries=False,
        limit=BrokerLimit(),
        consumer_timeout=timeout,
        arguments=work_queue_arguments(queue, version),
    )


def _check_binding(
    broker: _CheckedBroker, queue: WorkQueue, binding: Binding, *, exists: bool
) -> Iterator[CheckResult]:
    subject = f"queue {queue.name}"
    try:
        find_exchange(broker.url, binding.exchange)
    except ExchangeMissingError:
        yield _ok(subject, f"exchange {binding.exchange} does not exist yet: it is declared")
        return
    if misfit := exchange_misfit(broker.connection, broker.address, binding):
        yield _warning(subject, f"is to be bound to exchange {binding.exchange}: {misfit}")
    if exists and (
        refused := refused_to_bind(broker.connection, broker.address, queue.name, binding.exchange)
    ):
        yield _error(subject, refused)


def _check_readers(
    scope: _Scope, broker: _CheckedBroker, queue: WorkQueue
) -> Iterator[CheckResult]:
    """Find other readers of the queue: another topology that runs, or another program."""
    subject = f"queue {queue.name}"
    with closing(DepthReader(broker.url)) as reader:
        depths = reader.look([queue.name])
    if not depths:
        return
    ready, consumers = depths[0].ready, depths[0].consumers
    yield _ok(subject, f"{counted(ready, 'message')} ready, {counted(consumers, 'consumer')}")
    if not consumers or not scope.redis_answers or scope.topology is None:
        return
    running = running_readers(scope.settings.redis_urls[0], queue.name)
    others = [name for name in running if name != scope.topology.name]
    if others:
        yield _error(
            subject,
            f"topology {', '.join(others)} reads it too, so each message reaches only one of the "
            "topologies: give each a queue of its own, bound to one exchange",
        )
    elif scope.topology.name not in running:
        yield _warning(
            subject,
            f"{counted(consumers, 'consumer')} of other programs read it, and take messages away "
            "from this topology: stop them, or read another queue",
        )


def _check_sink(broker: _CheckedBroker, name: str, sink: QueueSink) -> Iterator[CheckResult]:
    subject = f"bolt {name}"
    if isinstance(sink.exchange, str) and sink.exchange:
        yield from _check_exchange(broker, subject, sink)
    if not isinstance(sink.queue, str):
        return
    if not sink.declares:
        queue = WorkQueue(name=sink.queue, declare=False)
        look_at_work_queue(broker.connection, broker.address, queue)
    elif refused := refused_to_declare(broker.connection, broker.address, sink.queue):
        yield _error(subject, refused)


def _check_exchange(broker: _CheckedBroker, subject: str, sink: QueueSink) -> Iterator[CheckResult]:
    try:
        find_exchange(broker.url, sink.exchange)
    except ExchangeMissingError:
        if not sink.declares:
            raise
        yield _ok(subject, f"exchange {sink.exchange} does not exist yet: the sink declares it")
        return
    refused = ""
    if not broker.alarmed:
        refused = refused_to_publish(broker.connection, broker.address, sink.exchange)
    if refused:
        yield _error(subject, refused)


# -- Spark -----------------------------------------------------------------------------------------


def _check_spark(scope: _Scope) -> Iterator[CheckResult]:
    master = scope.settings.master
    check_versions()
    check_spark_python(master)
    check_hadoop(master)
    _check_python(spark_python(master))
    options = scope.topology.config.spark_options if scope.topology else {}
    if warning := memory_warning(settings_of("tiercel check", master, options, ())):
        yield _warning("spark", warning)
    places = master.removeprefix("spark://").split(",") if master.startswith("spark://") else []
    problems = [problem for place in places if (problem := _unreachable(place))]
    if problems and len(problems) == len(places):
        yield _error(
            "spark", f"{'; '.join(problems)}: start the master, or correct its address (--master)"
        )
    else:
        yield _ok("spark", f"PySpark, Java and Python are there; the master is {master}")


def _check_python(named: str) -> None:
    """Raise ConfigError if Spark's Python on this machine is of another version than this one."""
    ours = "{}.{}".format(*sys.version_info)
    program = "import sys; print('{}.{}'.format(*sys.version_info))"
    if not named:
        return
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark would start
            [named, "-c", program], capture_output=True, text=True, check=False, timeout=10
        )
        theirs = done.stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"PYSPARK_PYTHON: {named} does not start ({error})") from None
    if theirs != ours:
        raise ConfigError(
            f"PYSPARK_PYTHON: {named} is Python {theirs or 'of no version'}, and this is Python "
            f"{ours}: Spark needs the same in both; name another one, or unset it"
        )


def _unreachable(place: str) -> str:
    """Return why nothing answers at this place; empty if something does."""
    host, _, port = place.rpartition(":")
    try:
        target = (host or place, int(port) if host else _SPARK_PORT)
        socket.create_connection(target, timeout=_CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        return f"no Spark master answers at {place} ({error})"
    return ""
