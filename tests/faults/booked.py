"""A topology with effects that take place once: each number is booked in a state, and in
PostgreSQL.

PGHOST and similar variables name the PostgreSQL server.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.executions import EFFECTS
from tiercel import (
    BasicBolt,
    Config,
    DatabaseSink,
    QueueSpout,
    Reject,
    StatefulBolt,
    TopologyBuilder,
)

NAME = "booked"
QUEUE = "booked"
ACCOUNTS = 23
PARALLELISM = 4
# Without a primary key: only tiercel's keys prevent duplicates.
TABLE = "CREATE TABLE booked (number bigint, account bigint NOT NULL, balance bigint NOT NULL)"


# While a file of this name exists, some numbers are rejected when they are booked.
REJECT = "reject"
_REJECTED = 101


class Assign(BasicBolt):
    """Turns each number into a debit and a credit: two tuples of one message."""

    output_fields = "number long, account long"

    def execute(self, tup, collector):
        collector.emit([tup["number"], tup["number"] % ACCOUNTS])
        collector.emit([-tup["number"], tup["number"] % (ACCOUNTS - 1)])


class Book(StatefulBolt):
    output_fields = "number long, account long, balance long"
    once = True

    def execute(self, tup, collector):
        self.state.increment("numbers")
        balance = self.state.increment(tup["account"], tup["number"])
        collector.emit([tup["number"], tup["account"], balance])


class Doubt(BasicBolt):
    """Rejects messages whose effects took place."""

    def execute(self, tup, collector):
        if tup["number"] % _REJECTED == 0 and (Path(os.environ[EFFECTS]) / REJECT).exists():
            raise Reject("put it back")


def topology():
    builder = TopologyBuilder(
        NAME, Config(ackers=2, message_timeout_secs=15, shutdown_grace_secs=2)
    )
    builder.set_spout("numbers", QueueSpout(QUEUE, fields="number long", identity="body"), 2)
    builder.set_bolt("assign", Assign(), 2).shuffle_grouping("numbers")
    # At random, so that one number may be at two tasks at once.
    builder.set_bolt("book", Book(), PARALLELISM).shuffle_grouping("assign")
    sink = DatabaseSink("postgresql://", NAME, patience_secs=120)
    builder.set_bolt("database", sink, PARALLELISM).shuffle_grouping("book")
    builder.set_bolt("doubt", Doubt()).shuffle_grouping("book")
    return builder.build()
