"""Runs one level's share of a micro-batch: chunks in, bolts, one update of the ledger, chunks out. Plain Python, no Spark."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import numpy as np

from acker import Applied, ErrorReport, Failure, Ledger, LedgerUnavailableError, Metrics, Token
from acker.ids import mix, mix_array
from acker.ledger import Ids
from acker.work import canonical, conflict_of
from queues.chunk import Chunk, Lineage, Route, encode
from spark_jobs.arrivals import arrival
from spark_jobs.arrow_bolt import ArrowBolt
from spark_jobs.arrow_run import ArrowRecord, arrow_departures, execute_arrow
from spark_jobs.bolt import BasicBolt
from spark_jobs.collector import Record
from spark_jobs.counts import ACKER, ACKER_TASK, acker_counts, sources_of, task_counts
from spark_jobs.departures import Departure, departures
from spark_jobs.errors import StaleTurnError
from spark_jobs.execution import execute_bolt, fail_all
from spark_jobs.fold import fold, join_lineages, roots_of, row_seeds
from spark_jobs.instances import Copy, Instances
from spark_jobs.levels import Plan
from spark_jobs.outputs import Outputs
from spark_jobs.snapshots.memory import MemorySnapshots
from spark_jobs.snapshots.store import SnapshotStore
from spark_jobs.state import StateStore
from spark_jobs.suspects.book import CaseBook
from spark_jobs.suspects.guard import Guard, Watch
from spark_jobs.suspects.lookout import Lookout
from spark_jobs.suspects.watchdog import Watchdog
from spark_jobs.task_states import TaskStates
from spark_jobs.ticks import without_old_ticks
from spark_jobs.tuples import Tuple, tuples_of

_STALE = "micro-batch %d of run %s is over for level %d: a later one, or a later run, has begun"


class LevelRunner:
    """One level of one run in one process; keeps the bolts' copies between micro-batches. One thread only."""

    def __init__(  # noqa: PLR0913 - the things it joins, each with a contract of its own
        self,
        *,
        plan: Plan,
        level: int,
        ledger: Ledger | None,
        metrics: Metrics,
        config: Mapping[str, Any],
        snapshots: SnapshotStore | None = None,
        key: bytes = b"",
        state: StateStore | None = None,
        book: CaseBook | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Without a ledger nothing is told to one: for topologies in which nothing is tracked.

        ``snapshots`` keeps the bolts' copies for other processes, sealed with ``key``; without it this is the only one.
        ``state`` keeps the states of stateful bolts, ``book`` what this process is doing, should it die of that; ``watchdog``
        ends it if it hangs.
        """
        self._plan, self._level, self._ledger, self._metrics = plan, level, ledger, metrics
        self._instances = Instances(plan, config, MemorySnapshots() if snapshots is None else snapshots, key)
        self._state = state
        self._outputs: dict[int, Outputs] = {}
        self.book, self._watchdog = book, watchdog

    def run(self, token: Token, payloads: Iterable[bytes], attempt: int = 0) -> list[tuple[int, bytes]]:
        """Run the bolts on these chunks; returns (lane, chunk) rows for the next level.

        The updates take effect in the ledger once per token, however often this is called with it,
        and each call begins with what the bolts were before the token's micro-batch. Raises AckerError
        if the ledger cannot be reached: the whole call may then be repeated. Raises StaleTurnError if
        the ledger has heard of a later micro-batch or run. From the second ``attempt`` on, tuples that
        kill the process are looked for.
        """
        rows: list[tuple[int, bytes]] = []
        chunks: list[Chunk] = []
        released: list[int] = []
        for payload in payloads:
            chunk, foreign = arrival(payload, self._plan, self._level)
            released += foreign
            if chunk is None:
                continue
            target = chunk.route.target_task
            if self._plan.places[target].level == self._level:
                chunks.append(chunk)
            else:
                rows.append((self._plan.lane_after(self._level, target), payload))
        if released and self._ledger is not None:
            self._ledger.release(released)
        if not chunks:
            return rows
        try:
            rows += self._watched(_Work(self, without_old_ticks(chunks), token, self.book if attempt else None))
        except BaseException:
            # The attempt ends in the middle: bolts may hold what was never flushed or acked.
            self._instances.drop_all()
            raise
        return rows

    def _watched(self, work: _Work) -> list[tuple[int, bytes]]:
        if self._watchdog is None:
            return work.run()
        with self._watchdog.over(work.lookout):
            return work.run()

    def close(self) -> None:
        """Clean the bolts' copies up."""
        self._instances.drop_all()

    def outputs(self, task_id: int) -> Outputs:
        """The recording lists of a task, empty."""
        found = self._outputs.get(task_id)
        if found is None:
            found = self._outputs[task_id] = Outputs(self._plan.topology, task_id)
        found.clear()
        return found


class _Work:
    """One call of ``run``."""

    def __init__(self, runner: LevelRunner, chunks: list[Chunk], token: Token, book: CaseBook | None) -> None:
        self._runner, self._token = runner, token
        self._plan, self._ledger, self._metrics = runner._plan, runner._ledger, runner._metrics  # noqa: SLF001 - its other half
        self._level, self._instances = runner._level, runner._instances  # noqa: SLF001 - its other half
        by_task: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            by_task.setdefault(chunk.route.target_task, []).append(chunk)
        self._copies = self._instances.take(sorted(by_task), token.step)
        held = {task_id: copy.held for task_id, copy in self._copies.items() if isinstance(copy, Copy)}
        self._sources = {task_id: sources_of(its_chunks) for task_id, its_chunks in by_task.items()}
        self._held_rows = sum(len(each.tuples) for each in held.values())
        self._lineage = join_lineages([each.lineage for each in held.values()] + [chunk.lineage for chunk in chunks])
        self._seeds = row_seeds(self._lineage)
        self._children: list[Lineage] = []
        self._records = self._load({task_id: each.tuples for task_id, each in held.items()}, chunks)
        self._states = TaskStates(runner._state, self._plan.topology, token.step)  # noqa: SLF001 - its other half
        roots = partial(roots_of, self._lineage)
        self.lookout = Lookout(token, self._runner.book, self._ledger, roots)
        self._guard = Guard(book, token, self._ledger, roots) if book and self._ledger else None

    def run(self) -> list[tuple[int, bytes]]:
        try:
            for task_id, record in self._records.items():
                self._execute(task_id, record)
        finally:
            self.lookout.executing = None
            if self._guard is not None:
                self._guard.rest()
        rows = [row for task_id, record in self._records.items() for row in self._emit(task_id, record)]
        worked = {task_id: record for task_id, record in self._records.items() if not record.aborted}
        self._instances.keep(self._token.step, worked, self._lineage)
        self._settle()
        return rows

    def _load(self, held: Mapping[int, Sequence[Tuple]], chunks: Sequence[Chunk]) -> dict[int, Record]:
        """Bring in what each task holds, and its input, in the order of the lineage."""
        salt = _salt(self._token)
        untracked = np.flatnonzero(np.diff(self._lineage.offsets) == 0)
        seeds = self._seeds.copy()
        seeds[untracked] = mix_array(untracked.astype(np.uint64) + np.uint64(salt))
        no_tree = frozenset(untracked.tolist())
        records = {task_id: self._record(task_id, seeds, no_tree, salt) for task_id in self._copies}
        arrivals: list[tuple[int, Sequence[Tuple] | Chunk]] = list(held.items())
        arrivals += [(chunk.route.target_task, chunk) for chunk in chunks]
        by_tuple = any(not isinstance(record, ArrowRecord) for record in records.values())
        identities: list[int] = seeds.tolist() if by_tuple else []
        row = 0
        for task_id, arrived in arrivals:
            record = records[task_id]
            if isinstance(record, ArrowRecord) and isinstance(arrived, Chunk):
                record.receive(arrived, row)
                row += arrived.values.num_rows
                continue
            if isinstance(arrived, Chunk):
                record.tuples += tuples_of(arrived, row, identities, record)
                row += arrived.values.num_rows
                continue
            for tup in arrived:
                tup.row, tup.seed, tup.record = row, identities[row], record
                row += 1
            record.tuples += arrived
            record.held = len(arrived)
        return records

    def _record(self, task_id: int, seeds: Ids, no_tree: frozenset[int], salt: int) -> Record:
        component, outputs = self._plan.places[task_id].component, self._runner.outputs(task_id)
        if isinstance(self._plan.topology.bolts[component].bolt, ArrowBolt):
            return ArrowRecord(component, outputs, no_tree, salt, seeds)
        record = Record(component, outputs, no_tree, salt)
        record.tell_resets = self._tell_resets
        return record

    def _execute(self, task_id: int, record: Record) -> None:
        self.lookout.executing = (task_id, record)
        copy = self._copies[task_id]
        if not isinstance(copy, Copy):
            fail_all(record, copy, "prepare")
            return
        watch: Watch | None = partial(self._guard.watch, task_id, record) if self._guard else None
        if isinstance(copy.bolt, ArrowBolt):
            trusted = execute_arrow(copy.bolt, cast("ArrowRecord", record), watch)
        else:
            with self._states.lent(task_id, copy.bolt, record):
                trusted = execute_bolt(copy.bolt, record, watch)
        if not trusted:
            self._states.forget(task_id)
            self._instances.drop(task_id)

    def _emit(self, task_id: int, record: Record) -> list[tuple[int, bytes]]:
        """The chunks that a task emitted, each with the lane that it goes to."""
        rows = []
        for departure in self._departures(record):
            self._children.append(departure.lineage)
            target = departure.target
            route = Route(component=record.component, stream=departure.stream, source_task=task_id, target_task=target)
            payload = encode(Chunk(route=route, values=departure.values, lineage=departure.lineage))
            rows.append((self._plan.lane_after(self._level, target), payload))
        return rows

    def _departures(self, record: Record) -> Iterable[Departure]:
        if isinstance(record, ArrowRecord):
            return arrow_departures(record, self._lineage, self._seeds)
        basic = isinstance(self._plan.topology.bolts[record.component].bolt, BasicBolt)
        return departures(record, self._lineage, self._seeds, basic=basic)

    def _settle(self) -> None:
        """Tell the ledger, once, what became of the trees; and count it if it was the first time."""
        acked = np.concatenate([np.zeros(0, np.int64), *(np.asarray(each.acked, np.int64) for each in self._records.values())])
        updates = fold(self._lineage, acked, self._children, self._held_rows)
        failures = [
            Failure(root=root, component=record.component, task=task_id, reason=reason)
            for task_id, record in self._records.items()
            for row, reason in record.reasons.items()
            for root in roots_of(self._lineage, row)
        ]
        self._reset([row for record in self._records.values() for row in record.resets])
        # A tick may be all the input there is, and what fails was held: then nothing is updated.
        ledger = self._ledger if len(updates.roots) or failures else None
        if not self._states.commit(updates, failures):
            if ledger is not None:
                ledger.fail([conflict_of(root) for root in canonical(updates, failures).roots.tolist()])
            return
        counts: dict[tuple[str, int], Mapping[str, int]] = {}
        if ledger is not None:
            began = time.perf_counter_ns()
            reply = ledger.apply(self._token, updates, failures)
            if reply.applied is Applied.STALE:
                raise StaleTurnError(_STALE % (self._token.step, self._token.run, self._level))
            if reply.applied is not Applied.FRESH:
                return
            counts[ACKER, ACKER_TASK] = acker_counts(reply, len(updates.roots), time.perf_counter_ns() - began)
        now_ns = time.time_ns()
        for task_id, record in self._records.items():
            counts[record.component, task_id] = task_counts(record, self._sources[task_id], now_ns)
        self._metrics.add_all(counts)
        self._report()

    def _tell_resets(self, rows: Sequence[int]) -> bool:
        try:
            self._reset(rows)
        except LedgerUnavailableError:
            return False  # not the bolt's affair: they are told when the task ends
        return True

    def _reset(self, rows: Sequence[int]) -> None:
        roots = [root for row in rows for root in roots_of(self._lineage, row)]
        if self._ledger is not None and roots:
            self._ledger.reset_timeout(roots)

    def _report(self) -> None:
        now = datetime.now(UTC)
        for task_id, record in self._records.items():
            if record.errors:
                component, errors = record.component, record.errors
                self._metrics.report(
                    [ErrorReport(at=now, component=component, task=task_id, message=message[:500]) for message in errors]
                )


def _salt(token: Token) -> int:
    """What tells the untracked tuples of one task of one micro-batch from those of others; the same at a retry."""
    salt = zlib.crc32(token.run.encode())
    for number in (token.step, token.task):
        salt = mix(salt ^ number)
    return salt
