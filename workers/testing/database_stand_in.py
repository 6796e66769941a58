"""In the place of a ``DatabaseSink``: makes its rows, and shows them to the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.bolt import Bolt
from tiercel.spark_jobs.bolts.collecting import OutputCollector
from tiercel.spark_jobs.bolts.context import TopologyContext
from tiercel.spark_jobs.bolts.database_sink import DatabaseSink
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.database.rows import OTHER_MESSAGE, Row
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology
from tiercel.workers.testing.capture import Seen
from tiercel.workers.testing.errors import LocalClusterError

# A name that no field of a user's has.
_KEY = replace(Schema.parse("key binary").fields[0], name="__key")


class _Keys:
    """The keys of one sink, which all of its tasks in this process know."""

    def __init__(self) -> None:
        self._contents: dict[bytes, int] = {}

    def claim(self, row: Row) -> int | None:
        """Return what the message said whose row has this key; None if it is new, or none."""
        if row.key is None:
            return None
        before = self._contents.get(row.key)
        if before is None:
            self._contents[row.key] = row.said.content
        return before

    def __deepcopy__(self, memo: object) -> _Keys:
        return self


class CapturedDatabase(Bolt):
    """In the place of a ``DatabaseSink``: makes its rows, and writes none. What has a key that was
    there before is no row, as in the database; a function of the user's is not called.
    """

    def __init__(self, sink: DatabaseSink) -> None:
        self._sink = sink
        self._keys = _Keys()
        self._held: list[tuple[Tuple, Row]] = []

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """The sink itself would look for its address here."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup.is_tick:
            collector.ack(tup)
            return
        self._held.append((tup, self._sink.row_of(tup, self._sink.columns_of(tup.fields))))

    def flush(self, collector: OutputCollector) -> None:
        held = self._held
        self._held = []
        for tup, row in held:
            before = self._keys.claim(row)
            if before is None:
                # In no tree: what is written is not taken back where another part of it fails.
                stream = _stream_of(tup.source_component, tup.source_stream)
                collector.emit([*tup.values, row.key], stream=stream)
            elif row.said.contradicts(before):
                collector.report_error(OTHER_MESSAGE.reason)
                collector.fail(tup, OTHER_MESSAGE.reason)
                continue
            collector.ack(tup)


def without_database(topology: Topology) -> Topology:
    """Return the topology with stand-ins for its database sinks."""
    bolts = {
        component: replace(spec, bolt=CapturedDatabase(spec.bolt), streams=_streams(topology, spec))
        if isinstance(spec.bolt, DatabaseSink)
        else spec
        for component, spec in topology.bolts.items()
    }
    return replace(topology, bolts=bolts)


def with_database(topology: Topology, url: str) -> Topology:
    """Return the topology with another database for its sinks. Raises TopologyError."""
    bolts = {
        component: replace(spec, bolt=spec.bolt.at(url))
        if isinstance(spec.bolt, DatabaseSink)
        else spec
        for component, spec in topology.bolts.items()
    }
    return replace(topology, bolts=bolts)


def written_rows(topology: Topology, seen: Seen, table: str) -> list[dict[str, Any]]:
    """Return the rows that captured sinks made for a table.

    Raises LocalClusterError for one that no sink writes into.
    """
    sinks = {
        component: (spec, spec.bolt)
        for component, spec in topology.bolts.items()
        if isinstance(spec.bolt, DatabaseSink)
    }
    tables = sorted({sink.table for _, sink in sinks.values()})
    if table not in tables:
        there = ", ".join(tables) or "none"
        raise LocalClusterError(f"no DatabaseSink writes into {table!r}; the tables are {there}")
    rows: list[dict[str, Any]] = []
    for component, (spec, sink) in sinks.items():
        # Tasks in several processes do not know each other's keys.
        keys: set[bytes] = set()
        for one in spec.subscriptions if sink.table == table else ():
            names = topology.spec(one.component).streams[one.stream].names
            columns = sink.columns_of(names)
            for *values, key in seen.of(component, _stream_of(one.component, one.stream)):
                if key not in keys:
                    found = dict(zip(names, values, strict=True))
                    rows.append({column: found[field] for column, field in columns.items()})
                if key is not None:
                    keys.add(key)
    return rows


def _streams(topology: Topology, spec: BoltSpec) -> dict[str, Schema]:
    """One for each stream that the sink receives, with the fields of that, and the key."""
    return {
        _stream_of(one.component, one.stream): Schema(
            (*topology.spec(one.component).streams[one.stream].fields, _KEY)
        )
        for one in spec.subscriptions
    }


def _stream_of(component: str, stream: str) -> str:
    return f"__written {component} {stream}"
