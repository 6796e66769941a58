"""Readings from a queue into a database, one transaction per batch: ``tiercel run
tiercel.examples.bulk_insert:topology``.

    echo '{"id": 1, "sensor": "mews", "celsius": 19.5}' | tiercel publish readings -

The rows are in ``readings.db``, in the folder where it was started. A reading that the database
refuses (below absolute zero) fails alone, and at the delivery limit it becomes a dead letter.
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
# A message may be delivered twice: its second row takes the place of the first.
_INSERT = """
    INSERT INTO readings VALUES (?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET sensor = excluded.sensor, celsius = excluded.celsius
"""


class Store(BatchBolt):
    """Writes a batch in one transaction, which is committed before any of its tuples is acked."""

    transient = frozenset({"database"})
    # The transaction takes back what a batch wrote that raised: it can be tried by halves.
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
            # Locked, or its disk is full: no row is to blame, so there is none to look for.
            for tup in tuples:
                collector.fail(tup, error)

    def cleanup(self) -> None:
        self.database.close()


def topology() -> Topology:
    builder = TopologyBuilder("bulk-insert")
    builder.set_spout(
        "readings", QueueSpout("readings", fields="id long, sensor string, celsius double")
    )
    # One task: SQLite has one writer at a time. A server takes several.
    database = {"database": str(Path("readings.db").resolve())}
    builder.set_bolt("store", Store(), config=database).shuffle_grouping("readings")
    return builder.build()
