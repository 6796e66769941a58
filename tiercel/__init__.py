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
    # ``as`` tells type checkers that the name is for users.
    from tiercel.acker.errors import AckerError as AckerError
    from tiercel.acker.errors import RedisRefusedError as RedisRefusedError
    from tiercel.acker.errors import RedisUnavailableError as RedisUnavailableError
    from tiercel.acker.errors import RedisVersionError as RedisVersionError
    from tiercel.queues.broker.declare import WorkQueue as WorkQueue
    from tiercel.queues.broker.declare import declare_queue as declare_queue
    from tiercel.queues.broker.depths import QueueDepth as QueueDepth
    from tiercel.queues.errors import AddressError as AddressError
    from tiercel.queues.errors import BadBodyError as BadBodyError
    from tiercel.queues.errors import BadPropertyError as BadPropertyError
    from tiercel.queues.errors import BrokerRefusedError as BrokerRefusedError
    from tiercel.queues.errors import BrokerUnavailableError as BrokerUnavailableError
    from tiercel.queues.errors import ExchangeMissingError as ExchangeMissingError
    from tiercel.queues.errors import MessageTooLargeError as MessageTooLargeError
    from tiercel.queues.errors import NackedError as NackedError
    from tiercel.queues.errors import PublishRefusedError as PublishRefusedError
    from tiercel.queues.errors import QueueMissingError as QueueMissingError
    from tiercel.queues.errors import QueuesError as QueuesError
    from tiercel.queues.errors import SchemaError as SchemaError
    from tiercel.queues.errors import ServerTooOldError as ServerTooOldError
    from tiercel.queues.message.identity import Identity as Identity
    from tiercel.queues.message.writing import OutgoingMessage as OutgoingMessage
    from tiercel.queues.publishing.dead_letters import DeadLetter as DeadLetter
    from tiercel.queues.publishing.publisher import Publisher as Publisher
    from tiercel.queues.queue_spout import MessageId as MessageId
    from tiercel.queues.queue_spout import QueueSpout as QueueSpout
    from tiercel.queues.retry import RetryPolicy as RetryPolicy
    from tiercel.queues.spout import MsgId as MsgId
    from tiercel.queues.spout import Spout as Spout
    from tiercel.queues.spout import SpoutCollector as SpoutCollector
    from tiercel.queues.spout import SpoutContext as SpoutContext
    from tiercel.queues.spout import TaskContext as TaskContext
    from tiercel.queues.values.schema import Field as Field
    from tiercel.queues.values.schema import Schema as Schema
    from tiercel.spark_jobs.bolts.bolt import ArrowBolt as ArrowBolt
    from tiercel.spark_jobs.bolts.bolt import AsyncBolt as AsyncBolt
    from tiercel.spark_jobs.bolts.bolt import BasicBolt as BasicBolt
    from tiercel.spark_jobs.bolts.bolt import BatchBolt as BatchBolt
    from tiercel.spark_jobs.bolts.bolt import Bolt as Bolt
    from tiercel.spark_jobs.bolts.collecting import ArrowCollector as ArrowCollector
    from tiercel.spark_jobs.bolts.collecting import AsyncCollector as AsyncCollector
    from tiercel.spark_jobs.bolts.collecting import BasicCollector as BasicCollector
    from tiercel.spark_jobs.bolts.collecting import BatchCollector as BatchCollector
    from tiercel.spark_jobs.bolts.collecting import OutputCollector as OutputCollector
    from tiercel.spark_jobs.bolts.collecting import TopologyContext as TopologyContext
    from tiercel.spark_jobs.bolts.collecting import WindowCollector as WindowCollector
    from tiercel.spark_jobs.bolts.database_sink import DatabaseSink as DatabaseSink
    from tiercel.spark_jobs.bolts.queue_sink import QueueSink as QueueSink
    from tiercel.spark_jobs.bolts.retry import Retry as Retry
    from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt as StatefulBolt
    from tiercel.spark_jobs.bolts.tuples import Tuple as Tuple
    from tiercel.spark_jobs.bolts.tuples import field as field
    from tiercel.spark_jobs.bolts.verdicts import Reject as Reject
    from tiercel.spark_jobs.bolts.verdicts import RetryLater as RetryLater
    from tiercel.spark_jobs.bolts.windowed_bolt import AggregatingBolt as AggregatingBolt
    from tiercel.spark_jobs.bolts.windowed_bolt import Session as Session
    from tiercel.spark_jobs.bolts.windowed_bolt import Sliding as Sliding
    from tiercel.spark_jobs.bolts.windowed_bolt import TupleWindow as TupleWindow
    from tiercel.spark_jobs.bolts.windowed_bolt import WindowedBolt as WindowedBolt
    from tiercel.spark_jobs.bolts.windowed_bolt import tumbling as tumbling
    from tiercel.spark_jobs.errors import AlreadyAckedError as AlreadyAckedError
    from tiercel.spark_jobs.errors import BadAnchorsError as BadAnchorsError
    from tiercel.spark_jobs.errors import BadStateError as BadStateError
    from tiercel.spark_jobs.errors import BadValuesError as BadValuesError
    from tiercel.spark_jobs.errors import ConfigValueError as ConfigValueError
    from tiercel.spark_jobs.errors import DirectStreamError as DirectStreamError
    from tiercel.spark_jobs.errors import ForeignTupleError as ForeignTupleError
    from tiercel.spark_jobs.errors import GroupingError as GroupingError
    from tiercel.spark_jobs.errors import OutputLimitError as OutputLimitError
    from tiercel.spark_jobs.errors import SparkJobsError as SparkJobsError
    from tiercel.spark_jobs.errors import SparkUnavailableError as SparkUnavailableError
    from tiercel.spark_jobs.errors import StateLayoutError as StateLayoutError
    from tiercel.spark_jobs.errors import TopologyError as TopologyError
    from tiercel.spark_jobs.errors import TupleError as TupleError
    from tiercel.spark_jobs.errors import UnknownStreamError as UnknownStreamError
    from tiercel.spark_jobs.state.key_value import KeyValueState as KeyValueState
    from tiercel.spark_jobs.topology.builder import TopologyBuilder as TopologyBuilder
    from tiercel.spark_jobs.topology.config import Config as Config
    from tiercel.spark_jobs.topology.graph import Topology as Topology
    from tiercel.spark_jobs.topology.grouping import CustomGrouping as CustomGrouping
    from tiercel.spark_jobs.topology.grouping import Grouping as Grouping

# Hidden from type checkers, which would take it for a promise that every name is there.
if not TYPE_CHECKING:

    @cache
    def _places() -> dict[str, str]:
        """Return the module of each public name, as the imports above tell type checkers."""
        source = files(__name__).joinpath("__init__.py").read_text("utf-8")
        found = re.findall(r"from (tiercel\.\S+) import (\w+) as", source)
        return {name: module for module, name in found}

    def __getattr__(name: str) -> object:
        if name == "__all__":
            return sorted(_places())
        if name not in _places():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_places()[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_places()})
