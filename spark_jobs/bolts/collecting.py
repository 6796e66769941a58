"""The contracts of the collectors: what a bolt emits, acks and fails with; and its context.

``execute`` and ``flush`` are handed a collector, ``prepare`` the context. ``emitting`` makes
collectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tiercel.queues.spout import TaskContext
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple


class _Collector(ABC):
    @abstractmethod
    def report_error(self, error: BaseException | str) -> None:
        """Show an error to the topology's operators; the tuple is not affected."""


class BasicCollector(_Collector):
    """For ``BasicBolt``: anchors emissions to the tuple that is being executed.

    For as long as ``execute`` runs: threads may use it that ``execute`` waits for. A bolt whose
    threads go on is a ``Bolt``.
    """

    @abstractmethod
    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        """Emit a tuple; returns the ids of the tasks that it names, none for a shuffle:
        there the next task that is free takes it.

        Raises BadValuesError, UnknownStreamError.
        """

    @abstractmethod
    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple to one task, on a direct stream.

        Raises BadValuesError, UnknownStreamError, DirectStreamError.
        """


class AsyncCollector(_Collector):
    """For ``AsyncBolt``: anchors emissions to the tuple of the call. Each call has its own,
    until it ends.

    Values are kept as they are when they are emitted. The tasks that receive them are chosen when
    the step ends, so ``emit`` does not return them.
    """

    @abstractmethod
    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple.

        Raises BadValuesError, UnknownStreamError, DirectStreamError, and TupleError in ``flush``
        and after the call has ended.
        """

    @abstractmethod
    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple to one task, on a direct stream; else as ``emit``."""


class OutputCollector(_Collector):
    """For ``Bolt``: anchors, acks and fails by hand.

    Any thread may call it, at any time, for a tuple that is not done, also in a later step than the
    tuple's own. Outside of ``execute`` and ``flush``, and in other threads than theirs, a call
    takes effect with the next commit of the task, which follows soon. If the process dies before,
    the tuple's message fails and is delivered again; a thread that outlives its task's copy of the
    bolt gets a ForeignTupleError.
    """

    @abstractmethod
    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        """Emit a tuple; returns the ids of the tasks that it names: none to a thread, for
        they are chosen at the commit.

        It joins the trees of its ``anchors``, one tuple or several: if it fails, the messages of
        all of them do. Without anchors it belongs to no tree, and nothing is replayed if it is
        lost. Raises BadValuesError, UnknownStreamError, AlreadyAckedError for an anchor that was
        acked or failed, ForeignTupleError.
        """

    @abstractmethod
    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Emit a tuple to one task, on a direct stream; else as ``emit``.

        Raises DirectStreamError as well.
        """

    @abstractmethod
    def ack(self, tup: Tuple) -> None:
        """Report that the bolt is done with the tuple.

        Raises AlreadyAckedError, ForeignTupleError.
        """

    @abstractmethod
    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        """Fail the tuple: the message at its root fails at once and is delivered again.

        Raises AlreadyAckedError, ForeignTupleError.

        Of the reason one line is kept.
        """

    @abstractmethod
    def reset_timeout(self, tup: Tuple) -> None:
        """Start the timeout of the tuple's messages again.

        Raises AlreadyAckedError, ForeignTupleError.
        """


class BatchCollector(_Collector):
    """For one call of ``execute_batch`` of a ``BatchBolt``, or for ``flush``.

    Emissions and failures through it count only if the call returns.
    """

    @abstractmethod
    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple],
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        """Emit a tuple; returns the ids of the tasks that it names, none for a shuffle:
        there the next task that is free takes it.

        ``anchors`` is the tuple of this batch that it was made of, or several: if it fails, the
        messages of all of them do. ``()``: it is in no tree, and nothing is replayed if it is lost.

        An emission stays behind when all its anchors fail, before or after it; one good anchor lets
        it go, since that message counts on it. Raises BadValuesError, UnknownStreamError,
        DirectStreamError, ForeignTupleError for an anchor that is not in this batch,
        AlreadyAckedError after the call has ended, and what a custom grouping raises.
        """

    @abstractmethod
    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple],
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Emit a tuple to one task, on a direct stream; else as ``emit``."""

    @abstractmethod
    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        """Fail one tuple of this batch: its message is delivered again. The others are acked.

        One that failed before keeps its first reason, cut to one line. Raises
        ForeignTupleError for a tuple that is not in this batch, AlreadyAckedError after the call
        has ended.
        """


class ArrowCollector(_Collector):
    """For one call of ``execute`` of an ``ArrowBolt``, or for ``flush``: emits record batches,
    anchored by row number.

    Emissions and failures through it count only if the call returns.
    """

    @property
    @abstractmethod
    def source_component(self) -> str:
        """The component that emitted the rows; empty in ``flush``."""

    @property
    @abstractmethod
    def source_stream(self) -> str:
        """The stream of the rows; empty in ``flush``."""

    @property
    @abstractmethod
    def source_tasks(self) -> pa.Int32Array:
        """The task that emitted each row."""

    @property
    @abstractmethod
    def keys(self) -> pa.FixedSizeBinaryArray:
        """The key of each row, as ``Tuple.key``: 16 bytes, or null."""

    @property
    @abstractmethod
    def is_tick(self) -> bool:
        """True if the batch is a tick: one row in no tree, sent every ``tick_tuple_freq_secs``."""

    @abstractmethod
    def emit(self, batch: Any, anchors: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple for each row of ``batch``, anchored to the input rows that
        ``anchors`` names.

        ``batch`` is a RecordBatch or a Table, a mapping of column names to arrays, or a data frame
        of pandas or polars; its columns are the stream's, in any order. ``anchors`` is an array, a
        Series or a list as long as ``batch``:

        * a row number each (filter: ``indices_nonzero(mask)``; explode:
          ``list_parent_indices(column)``);
        * or a list of row numbers each (fold: what ``group_by(…).aggregate([("row",
          "list")])`` returns);
        * or ``None`` itself: the rows are in no tree, and nothing is replayed if they are lost.

        Input rows that nothing is anchored to are acked like the others. An emission stays behind
        when all its anchors fail, now or later in the step; one good anchor lets it go, since that
        message counts on it, and the failed ones bring their part again. Raises BadValuesError,
        BadAnchorsError, UnknownStreamError, DirectStreamError, AlreadyAckedError after the call
        has ended, and what a custom grouping raises; then nothing was emitted.
        """

    @abstractmethod
    def emit_direct(
        self, tasks: Any, batch: Any, anchors: Any, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit on a direct stream, all rows to one task, or each to its own: ``tasks`` is an id, or
        an array with one per row.

        Else as ``emit``. Raises DirectStreamError as well for a task that does not
        receive the stream.
        """

    @abstractmethod
    def fail(self, rows: Any, reason: BaseException | str = "") -> None:
        """Fail input rows by number, one or an array of them: their messages are delivered again.

        The others are acked.

        A row that failed before keeps its first reason, cut to one line. Raises
        BadAnchorsError, AlreadyAckedError after the call has ended.
        """


@dataclass(frozen=True, kw_only=True)
class TopologyContext(TaskContext):
    """Context that a bolt task is given.

    * ``sources``: the component and the stream of each subscription.
    """

    sources: Sequence[tuple[str, str]]
