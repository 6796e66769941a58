"""tiercel: every message fully processed or replayed, on RabbitMQ, Redis and Spark.

These are the names for users, and ``tiercel.testing`` has the test kit. Everything else may change
with any release.

A name is imported when it is first asked for. A file of bolts needs little of what is here, and
``python -m tiercel.compose`` runs before any library is installed.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiercel.acker.errors import (
        AckerError,
        RedisRefusedError,
        RedisUnavailableError,
        RedisVersionError,
    )
    from tiercel.queues.broker.declare import WorkQueue, declare_queue
    from tiercel.queues.broker.depths import QueueDepth
    from tiercel.queues.errors import (
        AddressError,
        BadBodyError,
        BadPropertyError,
        BrokerRefusedError,
        BrokerUnavailableError,
        ExchangeMissingError,
        MessageTooLargeError,
        NackedError,
        PublishRefusedError,
        QueueMissingError,
        QueuesError,
        SchemaError,
        ServerTooOldError,
    )
    from tiercel.queues.message.identity import Identity
    from tiercel.queues.message.writing import OutgoingMessage
    from tiercel.queues.publishing.dead_letters import DeadLetter
    from tiercel.queues.publishing.publisher import Publisher
    from tiercel.queues.queue_spout import MessageId, QueueSpout
    from tiercel.queues.retry import RetryPolicy
    from tiercel.queues.spout import MsgId, Spout, SpoutCollector, SpoutContext, TaskContext
    from tiercel.queues.values.schema import Field, Schema
    from tiercel.spark_jobs.bolts.bolt import ArrowBolt, AsyncBolt, BasicBolt, BatchBolt, Bolt
    from tiercel.spark_jobs.bolts.collecting import (
        ArrowCollector,
        AsyncCollector,
        BasicCollector,
        BatchCollector,
        OutputCollector,
        TopologyContext,
    )
    from tiercel.spark_jobs.bolts.database_sink import DatabaseSink
    from tiercel.spark_jobs.bolts.queue_sink import QueueSink
    from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
    from tiercel.spark_jobs.bolts.tuples import Tuple, field
    from tiercel.spark_jobs.bolts.verdicts import Reject, RetryLater
    from tiercel.spark_jobs.errors import (
        AlreadyAckedError,
        BadAnchorsError,
        BadStateError,
        BadValuesError,
        ConfigValueError,
        DirectStreamError,
        ForeignTupleError,
        GroupingError,
        OutputLimitError,
        SparkJobsError,
        SparkUnavailableError,
        StateLayoutError,
        TopologyError,
        TupleError,
        UnknownStreamError,
    )
    from tiercel.spark_jobs.state.key_value import KeyValueState
    from tiercel.spark_jobs.topology.builder import TopologyBuilder
    from tiercel.spark_jobs.topology.config import Config
    from tiercel.spark_jobs.topology.graph import Topology
    from tiercel.spark_jobs.topology.grouping import CustomGrouping, Grouping

__all__ = [
    "AckerError",
    "AddressError",
    "AlreadyAckedError",
    "ArrowBolt",
    "ArrowCollector",
    "AsyncBolt",
    "AsyncCollector",
    "BadAnchorsError",
    "BadBodyError",
    "BadPropertyError",
    "BadStateError",
    "BadValuesError",
    "BasicBolt",
    "BasicCollector",
    "BatchBolt",
    "BatchCollector",
    "Bolt",
    "BrokerRefusedError",
    "BrokerUnavailableError",
    "Config",
    "ConfigValueError",
    "CustomGrouping",
    "DatabaseSink",
    "DeadLetter",
    "DirectStreamError",
    "ExchangeMissingError",
    "Field",
    "ForeignTupleError",
    "Grouping",
    "GroupingError",
    "Identity",
    "KeyValueState",
    "MessageId",
    "MessageTooLargeError",
    "MsgId",
    "NackedError",
    "OutgoingMessage",
    "OutputCollector",
    "OutputLimitError",
    "PublishRefusedError",
    "Publisher",
    "QueueDepth",
    "QueueMissingError",
    "QueueSink",
    "QueueSpout",
    "QueuesError",
    "RedisRefusedError",
    "RedisUnavailableError",
    "RedisVersionError",
    "Reject",
    "RetryLater",
    "RetryPolicy",
    "Schema",
    "SchemaError",
    "ServerTooOldError",
    "SparkJobsError",
    "SparkUnavailableError",
    "Spout",
    "SpoutCollector",
    "SpoutContext",
    "StateLayoutError",
    "StatefulBolt",
    "TaskContext",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "Tuple",
    "TupleError",
    "UnknownStreamError",
    "WorkQueue",
    "declare_queue",
    "field",
]

# Hidden from type checkers, which would take it for a promise that every name is there.
if not TYPE_CHECKING:

    @cache
    def _places() -> dict[str, str]:
        """Return the module of each public name, as the imports above tell type checkers."""
        source = files(__name__).joinpath("__init__.py").read_text("utf-8")
        found = re.findall(r"from (tiercel\.\S+) import (?:\(([^)]*)\)|(.*))", source)
        return {
            name: module
            for module, *imported in found
            for name in re.findall(r"\w+", "".join(imported))
        }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_places()[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
