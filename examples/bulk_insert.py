"""Readings from a queue into a database, one transaction per batch: ``tiercel run
tiercel.examples.bulk_insert:topology``.

    echo '{"id": 1, "sensor": "mews", "celsius": 19.5}' | tiercel publish readings -

The rows are in ``readings.db`` in the current folder. A reading that the database refuses (below
absolute zero) fails alone, and becomes a dead letter at the delivery limit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiercel import (
    BatchBolt,
    BatchCollector,
    QueueSpout,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

_CREATE = """
    CREATE TABLE IF NOT EXISTS readings (
        id INTEGER PRIMARY KEY, sensor TEXT NOT NULL, celsius REAL CHECK (celsius > -273.15)
    )
"""
# A message may be delivered twice: the second row replaces the first.
_INSERT = """
    INSERT INTO readings VALUES (?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET sensor = excluded.sensor, celsius = excluded.celsius
"""


class Store(BatchBolt):
    """Writes a batch in one transaction, committed before any of its tuples is acked."""

    transient = frozenset({"database"})
    # If a batch raises, the transaction is rolled back, so the batch can be retried by halves.
    on_error = "split"

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - each task is alike
        self.database = sqlite3.connect(config["database"])
        with self.database:
            self.database.execute(_CREATE)

    def execute_batch(self, tuples: Sequence[Tuple], collector: BatchCollector) -> None:
        try:
            with self.database:
                self.database.executemany(_INSERT, [tup.values for tup in tuples])
        except sqlite3.OperationalError as error:
            # The database is locked or its disk is full: do not search for a bad row.
            for tup in tuples:
                collector.fail(tup, error)

    def cleanup(self) -> None:
        self.database.close()


def topology() -> Topology:
    builder = TopologyBuilder("bulk-insert")
    builder.set_spout(
        "readings", QueueSpout("readings", fields="id long, sensor string, celsius double")
    )
    # One task, because SQLite allows one writer at a time. A database server allows several.
    database = {"database": str(Path("readings.db").resolve())}
    builder.set_bolt("store", Store(), config=database).shuffle_grouping("readings")
    return builder.build()
