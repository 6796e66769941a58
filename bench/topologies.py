"""Topologies that are measured: sentences split, words counted by word, counts written to Redis.

Settings are the defaults.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import redis

from bench.probe import start_probe
from tiercel import (
    ArrowBolt,
    ArrowCollector,
    BasicBolt,
    BasicCollector,
    BatchBolt,
    BatchCollector,
    Config,
    DatabaseSink,
    QueueSpout,
    SpoutContext,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tiercel.examples.word_count import SplitSentence, WordCount
from tiercel.spark_jobs.bolts.kinds import AnyBolt

KINDS = ("basic", "arrow", "untracked")
# The variable that tells each process where the database of what is stored in one is.
DATABASE = "BENCH_DATABASE"


class ObservedSpout(QueueSpout):
    """The queue's spout, with a probe in its worker."""

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        start_probe()
        super().open(config, context)


class SplitBatch(ArrowBolt):
    output_fields = "word string"

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:
        words = pc.utf8_split_whitespace(batch["sentence"])
        collector.emit({"word": words.flatten()}, pc.list_parent_indices(words))


class CountBatch(ArrowBolt):
    """Writes the counts of a step to Redis before its acks leave: one HINCRBY per word,
    in one pipeline.
    """

    transient = frozenset({"_client", "_counts"})

    def prepare(self, config: Mapping[str, Any], context: Any) -> None:
        super().prepare(config, context)
        self._client = redis.Redis.from_url(os.environ["TIERCEL_REDIS"])
        self._counts: Counter[str] = Counter()

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:  # noqa: ARG002 - nothing to emit
        counted = batch["word"].value_counts()
        self._counts.update(
            dict(
                zip(
                    counted.field("values").to_pylist(),
                    counted.field("counts").to_pylist(),
                    strict=True,
                )
            )
        )

    def flush(self, collector: ArrowCollector) -> None:  # noqa: ARG002 - nothing to emit
        if self._counts:
            with self._client.pipeline(transaction=False) as pipeline:
                for word, count in self._counts.items():
                    pipeline.hincrby("bench-counts", word, count)
                pipeline.execute()
            self._counts.clear()


def word_count(
    kind: str, split: AnyBolt, count: AnyBolt, config: Config, **settings: Any
) -> Topology:
    """``settings`` are more of the spout's."""
    builder = TopologyBuilder(f"bench-{kind}", config)
    spout = ObservedSpout(f"bench-{kind}", fields="sentence string", **settings)
    builder.set_spout("sentences", spout)
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", count, parallelism=2).fields_grouping("split", "word")
    return builder.build()


def basic() -> Topology:
    return word_count("basic", SplitSentence(), WordCount(), Config())


def arrow() -> Topology:
    return word_count("arrow", SplitBatch(), CountBatch(), Config())


def untracked() -> Topology:
    return word_count("untracked", SplitSentence(), WordCount(), Config(ackers=0))


def unnamed() -> Topology:
    return word_count("unnamed", SplitSentence(), WordCount(), Config())


def named() -> Topology:
    """The same with a message's properties in each tuple."""
    names = ["message_id", "headers", "timestamp", "routing_key", "delivery_count"]
    return word_count("named", SplitSentence(), WordCount(), Config(), properties=names)


class WordCountOnce(WordCount):
    once = True


def repeatedly() -> Topology:
    """Each word counts each time that its message is delivered."""
    return word_count("repeatedly", SplitSentence(), WordCount(), Config())


def once() -> Topology:
    """Each word counts once, by the id of its message."""
    return word_count("once", SplitSentence(), WordCountOnce(), Config(), identity="message_id")


def stored() -> Topology:
    """Each word becomes a row in PostgreSQL, once, by the id of its message."""
    sink = DatabaseSink(os.environ[DATABASE], "words")
    return word_count("stored", SplitSentence(), sink, Config(), identity="message_id")


# The variable that tells each process the shape of ``shaped``, as JSON.
SHAPE = "BENCH_SHAPE"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One point of a growth curve; everything else stays as a user gets it."""

    # Tuples that the first bolt emits for each message.
    tuples: int = 1
    # Bolts in a row, the first and the last among them; each is shuffled to.
    depth: int = 2
    spout_tasks: int = 1
    bolt_tasks: int = 2
    shards: int = 1

    @classmethod
    def told(cls) -> Shape:
        """By the environment."""
        return cls(**json.loads(os.environ[SHAPE]))

    def environment(self) -> dict[str, str]:
        return {SHAPE: json.dumps(asdict(self))}


class Fan(BasicBolt):
    """So many tuples for each message."""

    output_fields = "n long"

    def __init__(self, tuples: int) -> None:
        self._tuples = tuples

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - the body does not matter
        for number in range(self._tuples):
            collector.emit([number])


class Pass(BasicBolt):
    output_fields = "n long"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        collector.emit(tup.values)


class Drop(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        pass


def shaped() -> Topology:
    """A chain of bolts: the first fans out, the last (``count``) drops what it is given."""
    shape = Shape.told()
    builder = TopologyBuilder("bench-shaped", Config(ackers=shape.shards))
    builder.set_spout(
        "sentences",
        ObservedSpout("bench-shaped", fields="body string"),
        parallelism=shape.spout_tasks,
    )
    before = "sentences"
    if shape.depth > 1:
        builder.set_bolt("fan", Fan(shape.tuples), parallelism=shape.bolt_tasks).shuffle_grouping(
            before
        )
        before = "fan"
    for place in range(2, shape.depth):
        builder.set_bolt(f"pass{place}", Pass(), parallelism=shape.bolt_tasks).shuffle_grouping(
            before
        )
        before = f"pass{place}"
    builder.set_bolt("count", Drop(), parallelism=shape.bolt_tasks).shuffle_grouping(before)
    return builder.build()


def limited() -> Topology:
    """One bolt with one limit over its four tasks."""
    builder = TopologyBuilder("bench-limited")
    builder.set_spout("sentences", ObservedSpout("bench-limited", fields="tenant string"))
    config = {"rate_limit": "100/s"}
    builder.set_bolt("count", Drop(), parallelism=4, config=config).shuffle_grouping("sentences")
    return builder.build()


def tenants() -> Topology:
    """One bolt whose tenants have a limit each."""
    builder = TopologyBuilder("bench-tenants")
    builder.set_spout("sentences", ObservedSpout("bench-tenants", fields="tenant string"))
    config = {"rate_limit": "1/s", "rate_limit_by": "tenant"}
    bolt = builder.set_bolt("count", Drop(), parallelism=2, config=config)
    bolt.fields_grouping("sentences", "tenant")
    return builder.build()


# The variable that tells each process the shape of ``slow``, as JSON.
SLOW = "BENCH_SLOW"
# A hash in Redis: how often each message was executed.
EXECUTIONS = "bench-executions"


@dataclass(frozen=True, kw_only=True)
class SlowShape:
    """The tasks that do the slow work, and how it is spread.

    What each message costs is in the message.
    """

    tasks: int
    # Each task gets every so-many-th message. Otherwise they are shuffled, as most users have it.
    even: bool = False
    # Each execution is noted in Redis, so that repeats are seen and messages can raise once.
    noted: bool = False

    @classmethod
    def told(cls) -> SlowShape:
        """By the environment."""
        return cls(**json.loads(os.environ[SLOW]))

    def environment(self) -> dict[str, str]:
        return {SLOW: json.dumps(asdict(self))}


def slow_body(number: int, work_ms: float, *, raises: bool = False) -> bytes:
    """A message for ``slow``."""
    return json.dumps({"number": number, "work_ms": work_ms, "raises": raises}).encode()


class FirstTimeError(Exception):
    """Raised for a message that is to fail the first time."""


class Work(BasicBolt):
    """Takes as long as the message says, without using the CPU: as a call to
    another service does.
    """

    transient = frozenset({"_client"})

    def __init__(self, *, noted: bool) -> None:
        self._noted = noted

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        super().prepare(config, context)
        self._client = redis.Redis.from_url(config["redis_url"])

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        time.sleep(tup["work_ms"] / 1000)
        if self._noted:
            times: Any = self._client.hincrby(EXECUTIONS, tup["number"], 1)
            if tup["raises"] and times == 1:
                raise FirstTimeError(f"message {tup['number']} raises the first time")

    def cleanup(self) -> None:
        self._client.close()


class ByNumber:
    """Each task gets every so-many-th message."""

    def prepare(self, context: TopologyContext, stream: str, target_tasks: Sequence[int]) -> None:  # noqa: ARG002
        self._tasks = list(target_tasks)

    def choose_tasks(self, task_id: int, values: Sequence[Any]) -> Sequence[int]:  # noqa: ARG002
        return [self._tasks[values[0] % len(self._tasks)]]


def slow() -> Topology:
    """One slow bolt, ``work``. All settings are the default ones."""
    shape = SlowShape.told()
    builder = TopologyBuilder("bench-slow", Config())
    spout = ObservedSpout(
        "bench-slow", fields="number long, work_ms double, raises boolean", format="json"
    )
    builder.set_spout("sentences", spout)
    work = builder.set_bolt("work", Work(noted=shape.noted), parallelism=shape.tasks)
    if shape.even:
        work.custom_grouping("sentences", ByNumber())
    else:
        work.shuffle_grouping("sentences")
    return builder.build()


_CREATE = "CREATE TABLE IF NOT EXISTS sentences (number INTEGER PRIMARY KEY, sentence TEXT)"
_INSERT = "INSERT OR REPLACE INTO sentences VALUES (?, ?)"


class InsertRow(BasicBolt):
    """One transaction per tuple, committed before the tuple is acked."""

    transient = frozenset({"_database"})

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        super().prepare(config, context)
        self._database = _opened(config["database"])

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        with self._database:
            self._database.execute(_INSERT, tup.values)


class InsertBatch(BatchBolt):
    """The same, one transaction per batch."""

    transient = frozenset({"_database"})

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        super().prepare(config, context)
        self._database = _opened(config["database"])

    def execute_batch(self, tuples: Sequence[Tuple], collector: BatchCollector) -> None:  # noqa: ARG002 - nothing to emit
        with self._database:
            self._database.executemany(_INSERT, [tup.values for tup in tuples])


def _opened(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    with database:
        database.execute(_CREATE)
    return database


def rows() -> Topology:
    return _inserting("rows", InsertRow())


def batches() -> Topology:
    return _inserting("batches", InsertBatch())


def _inserting(kind: str, bolt: AnyBolt) -> Topology:
    """One task: the database has one writer at a time."""
    builder = TopologyBuilder(f"bench-{kind}")
    fields = "number long, sentence string"
    builder.set_spout("sentences", ObservedSpout(f"bench-{kind}", fields=fields))
    config = {"database": os.environ[DATABASE]}
    builder.set_bolt("insert", bolt, config=config).shuffle_grouping("sentences")
    return builder.build()
