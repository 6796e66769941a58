"""Messages written into a database: a transaction per row, one per batch, and by the sink."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from bench.topologies.observed import ObservedSpout
from bench.topologies.words import word_count
from tiercel import (
    BasicBolt,
    BasicCollector,
    BatchBolt,
    BatchCollector,
    Config,
    DatabaseSink,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tiercel.examples.word_count import SplitSentence
from tiercel.spark_jobs.bolts.windowed_bolt import AnyBolt

# The environment variable with the address of the database.
DATABASE = "BENCH_DATABASE"
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
    """One transaction per batch, committed before its tuples are acked."""

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
    """Use one task: the database has one writer at a time."""
    builder = TopologyBuilder(f"bench-{kind}")
    fields = "number long, sentence string"
    builder.set_spout("sentences", ObservedSpout(f"bench-{kind}", fields=fields))
    config = {"database": os.environ[DATABASE]}
    builder.set_bolt("insert", bolt, config=config).shuffle_grouping("sentences")
    return builder.build()


def stored() -> Topology:
    """Write each word as a row into PostgreSQL once, by the id of its message."""
    sink = DatabaseSink(os.environ[DATABASE], "words")
    return word_count("stored", SplitSentence(), sink, Config(), identity="message_id")
