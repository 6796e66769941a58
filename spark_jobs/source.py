"""The relay as a Spark streaming source that runs the first level's bolts while it reads.

Reading and running in one place keeps the spout's chunks out of the JVM and saves one Python worker a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from acker import Token
from queues import Relay
from queues.relay import START
from spark_jobs.job import Job
from spark_jobs.levels import share_number
from spark_jobs.patience import patiently

FORMAT = "tiercel-relay"
ROWS_DDL = "lane int, chunk binary"
"""What passes between levels: the lane that hosts the target task, and an encoded chunk for that task."""
_ROWS = pa.schema([("lane", pa.int32()), ("chunk", pa.binary())])
_SHORTEST_WAIT, _LONGEST_WAIT = timedelta(milliseconds=50), timedelta(milliseconds=400)
"""How long a query that has nothing to do waits inside one call, twice as long each time: each call costs a look through all of
Spark, but the query cannot end meanwhile."""


def row_batches(rows: list[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
    """The rows for Spark; nothing at all where there are none."""
    if rows:
        lanes, chunks = zip(*rows, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(lanes, pa.int32()), pa.array(chunks, pa.binary())], schema=_ROWS)


def run_level(job: Job, level: int, lane: int, payloads: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Run a level's share of the micro-batch that this Spark task belongs to; the rows for the next level."""
    context = TaskContext.get()
    number = context.getLocalProperty("streaming.sql.batchId") if context else None
    if context is None or number is None:
        raise RuntimeError("this Spark task does not belong to a micro-batch")
    token = Token(run=job.run, task=share_number(level, lane), step=int(number))
    yield from row_batches(patiently(job.run_level, level, token, list(payloads), context.attemptNumber()))


class RelayReader(DataSourceStreamReader):
    """Plans on the driver (in a Python process of its own), reads in the tasks. Offsets are {lane: position}.

    A task reads not only to the offset, but to the last entry that there was when its first attempt began: Spark takes a third
    of a small micro-batch from the one to the other, and what comes meanwhile need not wait for the next.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._relay: Relay | None = None
        self._wait = _SHORTEST_WAIT
        self._start: dict[int, str] = {}
        """The offset that Spark is at."""
        self._reached: dict[int, str] = {}
        """Where the tasks ended that read up to there."""

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {str(lane): START for lane in range(self._job.plan.relay_lanes)}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: ARG002, N802 - Spark's signature
        """Everything that is there: the spouts' pending bound keeps that within what a batch may take.

        Spark asks for the next batch only after the one that ended at ``start``, so what lies before is done with.
        """
        if self._relay is None:
            self._relay = self._job.open_relay()
        positions = {int(lane): position for lane, position in start.items()}
        ends = patiently(self._advanced, self._relay, positions)
        self._wait = _SHORTEST_WAIT if ends else min(2 * self._wait, _LONGEST_WAIT)
        return {str(lane): position for lane, position in {**positions, **ends}.items()}

    def _advanced(self, relay: Relay, start: dict[int, str]) -> dict[int, str]:
        """The ends of those lanes that hold something new."""
        if start != self._start:
            self._start, self._reached = start, relay.finish(start)
        ends = relay.advance(self._reached, 0, self._wait)
        return {lane: end for lane, end in ends.items() if end != self._reached[lane]}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """One a Spark partition of the first level; relay lanes beyond their number share."""
        plan = self._job.plan
        shares: dict[int, list[tuple[int, str, str]]] = {}
        for name, last in end.items():
            if last != start[name]:
                lane = int(name)
                shares.setdefault(lane % plan.lanes(1), []).append((lane, self._reached[lane], last))
        return [InputPartition(share) for share in sorted(shares.items())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        lane, ranges = partition.value
        relay = _process_relay(self._job)
        payloads = [payload for range_ in ranges for payload in patiently(_read, relay, *range_)]
        yield from run_level(self._job, 1, lane, payloads)

    def commit(self, end: dict[str, str]) -> None:
        """Nothing: ``latestOffset`` finishes, one batch earlier than Spark would say so."""


def _read(relay: Relay, lane: int, start: str, end: str) -> list[bytes]:
    return relay.read(lane, start, relay.seal(lane, end))


_relays: dict[str, Relay] = {}


def _process_relay(job: Job) -> Relay:
    """The connection of this Python worker process, for all its tasks of one run."""
    if job.run not in _relays:
        _relays.clear()
        _relays[job.run] = job.open_relay()
    return _relays[job.run]


def relay_source(job: Job) -> type[DataSource]:
    """The data source class of one job.

    The job is captured in the class and not given as an option: options are shown in plans, logs and Spark's web pages, and
    the job holds addresses with passwords.
    """

    class RelaySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return ROWS_DDL

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
            return RelayReader(job)

    return RelaySource
