"""The contracts of the collectors, with which a bolt emits, acks and fails; and its context.

``execute`` and ``flush`` receive a collector, ``prepare`` the context. ``emitting`` implements the
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

    Valid while ``execute`` runs, also in threads that ``execute`` waits for. For threads that
    outlive the call use a ``Bolt``.
    """

    @abstractmethod
    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        """Emit a tuple; returns the ids of the receiving tasks: none for a shuffle, because the
        next free task takes the tuple.

        Raises BadValuesError, UnknownStreamError.
        """

    @abstractmethod
    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple to one task, on a direct stream.

        Raises BadValuesError, UnknownStreamError, DirectStreamError.
        """


class AsyncCollector(_Collector):
    """For ``AsyncBolt``: anchors emissions to the tuple of the call. Each call has its own
    collector, valid until the call ends.

    Values are fixed when they are emitted. The receiving tasks are chosen when the step ends, so
    ``emit`` does not return them.
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

    Any thread may call it at any time for a tuple that is not done, also in a later step than the
    tuple's own. Outside ``execute`` and ``flush``, and in other threads, a call takes effect with
    the task's next commit, which follows soon. If the process dies first, the tuple's message fails
    and is delivered again; a thread that outlives its task's copy of the bolt gets a
    ForeignTupleError.
    """

    @abstractmethod
    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        """Emit a tuple; returns the ids of the receiving tasks: none in another thread, because
        they are chosen at the commit.

        It joins the trees of its ``anchors``, one tuple or several: if it fails, the messages of
        all anchors fail. Without anchors it belongs to no tree, and nothing is replayed if it is
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

        The reason is cut to one line. Raises AlreadyAckedError, ForeignTupleError.
        """

    @abstractmethod
    def reset_timeout(self, tup: Tuple) -> None:
        """Restart the timeout of the tuple's messages.

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
        """Emit a tuple; returns the ids of the receiving tasks: none for a shuffle, because the
        next free task takes the tuple.

        ``anchors`` is one or several tuples of this batch: if the emission fails, the messages of
        all anchors fail. With ``()`` it is in no tree, and nothing is replayed if it is lost.

        An emission is dropped if all its anchors fail, before or after it; with one good anchor it
        is sent, because that message needs it. Raises BadValuesError, UnknownStreamError,
        DirectStreamError, ForeignTupleError for an anchor that is not in this batch,
        AlreadyAckedError after the call has ended, and any error of a custom grouping.
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

        A tuple that fails twice keeps its first reason, cut to one line. Raises ForeignTupleError
        for a tuple that is not in this batch, AlreadyAckedError after the call has ended.
        """


class WindowCollector(_Collector):
    """For one call of ``execute`` of a ``WindowedBolt``, or of ``result`` of an
    ``AggregatingBolt``.

    Emissions and failures through it count only if the call returns.
    """

    @abstractmethod
    def emit(
        self,
        values: Sequence[Any],
        stream: str = DEFAULT_STREAM,
        *,
        anchors: Tuple | Iterable[Tuple] | None = None,
    ) -> list[int]:
        """Emit a tuple; returns the ids of the receiving tasks: none for a shuffle, because the
        next free task takes the tuple.

        It is anchored to all tuples of the window: if it fails, their messages fail. Of a window
        with many tuples and emissions name the ``anchors``, one or several tuples of the window:
        the cost is a number per emission and anchor. With ``anchors=()`` it is in no tree.

        Raises BadValuesError, UnknownStreamError, DirectStreamError, ForeignTupleError for an
        anchor that is not in this window, AlreadyAckedError after the call has ended, and any error
        of a custom grouping.
        """

    @abstractmethod
    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        stream: str = DEFAULT_STREAM,
        *,
        anchors: Tuple | Iterable[Tuple] | None = None,
    ) -> None:
        """Emit a tuple to one task, on a direct stream; else as ``emit``."""

    @abstractmethod
    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        """Fail one tuple of this window: it leaves all windows. Raise ``Reject`` for its message to
        become a dead letter at once; if it is delivered again, it may be late.

        Raises ForeignTupleError for a tuple that is not in this window, AlreadyAckedError after the
        call has ended.
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

        * one row number per output row (filter: ``indices_nonzero(mask)``; explode:
          ``list_parent_indices(column)``);
        * or a list of row numbers per output row (fold: the result of
          ``group_by(…).aggregate([("row", "list")])``);
        * or ``None`` itself: the rows are in no tree, and nothing is replayed if they are lost.

        Input rows without emissions are acked like the others. An emission is dropped if all its
        anchors fail, now or later in the step; with one good anchor it is sent, because that
        message needs it, and the failed rows emit their part again. Raises BadValuesError,
        BadAnchorsError, UnknownStreamError, DirectStreamError, AlreadyAckedError after the call
        has ended, and any error of a custom grouping; then nothing was emitted.
        """

    @abstractmethod
    def emit_direct(
        self, tasks: Any, batch: Any, anchors: Any, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit on a direct stream, all rows to one task, or each to its own: ``tasks`` is an id, or
        an array with one id per row.

        Otherwise like ``emit``. Also raises DirectStreamError for a task that does not receive the
        stream.
        """

    @abstractmethod
    def fail(self, rows: Any, reason: BaseException | str = "") -> None:
        """Fail input rows by number, one or an array of them: their messages are delivered again.

        The other rows are acked. A row that fails twice keeps its first reason, cut to one line.
        Raises BadAnchorsError, AlreadyAckedError after the call has ended.
        """


@dataclass(frozen=True, kw_only=True)
class TopologyContext(TaskContext):
    """Context of a bolt task.

    * ``sources``: the component and the stream of each subscription.
    """

    sources: Sequence[tuple[str, str]]
