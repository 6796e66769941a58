"""Runs one level's share of a micro-batch: chunks in, bolts, one update of the ledger, chunks out. Plain Python, no Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from acker import Applied, ErrorReport, Failure, Ledger, Metrics, Token
from acker.ids import mix, mix_array
from queues.chunk import Chunk, Lineage, Route, decode, encode
from spark_jobs.bolt import BasicBolt
from spark_jobs.collector import Record
from spark_jobs.departures import departures
from spark_jobs.execution import execute_bolt, fail_all
from spark_jobs.fold import fold, join_lineages, roots_of, row_seeds
from spark_jobs.instances import Instances
from spark_jobs.levels import Plan
from spark_jobs.outputs import Outputs
from spark_jobs.reasons import RAISED
from spark_jobs.tuples import ACKED, Origin, Tuple


class LevelRunner:
    """One level of one run in one process; keeps the bolts' copies between micro-batches. One thread only."""

    def __init__(self, *, plan: Plan, level: int, ledger: Ledger | None, metrics: Metrics, config: Mapping[str, Any]) -> None:
        """Without a ledger nothing is told to one: for topologies in which nothing is tracked."""
        self._plan, self._level, self._ledger, self._metrics = plan, level, ledger, metrics
        self._instances = Instances(plan, config)
        self._outputs: dict[int, Outputs] = {}

    def run(self, token: Token, payloads: Iterable[bytes]) -> list[tuple[int, bytes]]:
        """Run the bolts on these chunks; returns (lane, chunk) rows for the next level.

        The updates take effect in the ledger once a token, however often this is called with it. Raises AckerError if the
        ledger cannot be reached; the whole call may then be repeated.
        """
        rows: list[tuple[int, bytes]] = []
        chunks: list[Chunk] = []
        for payload in payloads:
            chunk = decode(payload)
            target = chunk.route.target_task
            if self._plan.places[target].level == self._level:
                chunks.append(chunk)
            else:
                rows.append((self._plan.lane_after(self._level, target), payload))
        if not chunks:
            return rows
        try:
            rows += _Work(self, chunks, token).run()
        except BaseException:
            # The attempt ends in the middle: bolts may hold what was never flushed or acked.
            self._instances.drop_all()
            raise
        return rows

    def outputs(self, task_id: int) -> Outputs:
        """The recording lists of a task, empty."""
        found = self._outputs.get(task_id)
        if found is None:
            found = self._outputs[task_id] = Outputs(self._plan.topology, task_id)
        found.clear()
        return found


class _Work:
    """One call of ``run``."""

    def __init__(self, runner: LevelRunner, chunks: list[Chunk], token: Token) -> None:
        self._runner, self._token = runner, token
        self._plan, self._ledger, self._metrics = runner._plan, runner._ledger, runner._metrics  # noqa: SLF001 - its other half
        self._level, self._instances = runner._level, runner._instances  # noqa: SLF001 - its other half
        self._lineage = join_lineages([chunk.lineage for chunk in chunks])
        self._seeds = row_seeds(self._lineage)
        self._records: dict[int, Record] = {}
        self._children: list[Lineage] = []
        self._load(chunks)

    def run(self) -> list[tuple[int, bytes]]:
        for task_id, record in sorted(self._records.items()):
            self._execute(task_id, record)
        rows = [row for task_id, record in self._records.items() for row in self._emit(task_id, record)]
        self._settle()
        return rows

    def _load(self, chunks: list[Chunk]) -> None:
        """Make the tuples of each task."""
        salt = _salt(self._token)
        untracked = np.flatnonzero(np.diff(self._lineage.offsets) == 0)
        seeds = self._seeds.copy()
        seeds[untracked] = mix_array(untracked.astype(np.uint64) + np.uint64(salt))
        identities, no_tree = seeds.tolist(), frozenset(untracked.tolist())
        row = 0
        topology = self._plan.topology
        for chunk in chunks:
            route = chunk.route
            record = self._records.get(route.target_task)
            if record is None:
                component = self._plan.places[route.target_task].component
                record = Record(component, self._runner.outputs(route.target_task), no_tree, salt)
                self._records[route.target_task] = record
            schema = topology.spec(route.component).streams[route.stream]
            origin = Origin(route.component, route.stream, route.source_task, schema.names)
            columns = [column.to_pylist() for column in chunk.values.columns]
            for values in zip(*columns, strict=True):
                record.tuples.append(Tuple(values, origin, row, identities[row], record))
                row += 1

    def _execute(self, task_id: int, record: Record) -> None:
        try:
            bolt = self._instances.get(task_id)
        except RAISED as error:
            fail_all(record, error, "prepare")
            return
        if not execute_bolt(bolt, record):
            self._instances.drop(task_id)

    def _emit(self, task_id: int, record: Record) -> list[tuple[int, bytes]]:
        """The chunks that a task emitted, each with the lane that it goes to."""
        rows = []
        basic = isinstance(self._plan.topology.bolts[record.component].bolt, BasicBolt)
        for departure in departures(record, self._lineage, self._seeds, basic=basic):
            self._children.append(departure.lineage)
            target = departure.target
            route = Route(component=record.component, stream=departure.stream, source_task=task_id, target_task=target)
            payload = encode(Chunk(route=route, values=departure.values, lineage=departure.lineage))
            rows.append((self._plan.lane_after(self._level, target), payload))
        return rows

    def _settle(self) -> None:
        """Tell the ledger, once, what became of the trees; and count it if it was the first time."""
        acked = np.array(
            [tup.row for record in self._records.values() for tup in record.tuples if tup.state == ACKED], np.int64
        )
        updates = fold(self._lineage, acked, self._children)
        failures = [
            Failure(root=root, component=record.component, task=task_id, reason=reason)
            for task_id, record in self._records.items()
            for row, reason in record.reasons.items()
            for root in roots_of(self._lineage, row)
        ]
        resets = [root for record in self._records.values() for row in record.resets for root in roots_of(self._lineage, row)]
        if self._ledger is not None and len(updates.roots):
            if resets:
                self._ledger.reset_timeout(resets)
            if self._ledger.apply(self._token, updates, failures).applied is not Applied.FRESH:
                return
        for task_id, record in self._records.items():
            self._count(task_id, record)

    def _count(self, task_id: int, record: Record) -> None:
        failed = len(record.reasons)
        acked = sum(tup.state == ACKED for tup in record.tuples)
        counts = {
            "executed": len(record.tuples),
            "emitted": record.emitted,
            "transferred": record.transferred,
            "acked": acked,
            "failed": failed,
            "execute_ns": record.execute_ns,
        }
        self._metrics.add(record.component, task_id, {name: count for name, count in counts.items() if count})
        if record.errors:
            now = datetime.now(UTC)
            self._metrics.report(
                [
                    ErrorReport(at=now, component=record.component, task=task_id, message=message[:500])
                    for message in record.errors
                ]
            )


def _salt(token: Token) -> int:
    """What tells the untracked tuples of one task of one micro-batch from those of others; the same at a retry."""
    salt = zlib.crc32(token.run.encode())
    for number in (token.batch, token.level, token.partition):
        salt = mix(salt ^ number)
    return salt
