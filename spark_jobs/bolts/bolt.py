"""The contracts of bolts: their input, and their duties.

A bolt is a plain Python object. The one in the topology is a prototype: each task works on its own
copy, and one thread calls it. The copy's attributes outlive its process: if they have changed when
a step ends they are pickled, and the next process begins with them. Attributes that cannot be
pickled (connections, locks) or are named in ``transient`` stay in their process, and ``prepare``
makes them again in the next one. A restarted driver begins with fresh copies.

``Bolt`` and ``BasicBolt`` receive tuples one by one, ``BatchBolt`` several at a time and
``ArrowBolt`` as record batches; ``AsyncBolt`` waits for many at once. ``StatefulBolt`` is in its
own module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from types import MappingProxyType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Literal

# Every user's bolt module imports this file, and the modules below load Arrow, which is slow.
if TYPE_CHECKING:
    import pyarrow as pa

    from tiercel.spark_jobs.bolts.collecting import (
        ArrowCollector,
        AsyncCollector,
        BasicCollector,
        BatchCollector,
        OutputCollector,
        TopologyContext,
    )
    from tiercel.spark_jobs.bolts.retry import Retry
    from tiercel.spark_jobs.bolts.tuples import Tuple


class _Declaring:
    # The default stream's fields in Spark DDL: ``"word string, n long"``.
    output_fields: str = ""
    # Several streams: names to DDL.
    output_streams: Mapping[str, str] = MappingProxyType({})
    # Streams on which only ``emit_direct`` emits.
    direct_streams: AbstractSet[str] = frozenset()
    # The policy by which the bolt's task executes tuples again that fail; None: it does not.
    retry: Retry | None = None


class _Prepared(_Declaring):
    # Attributes that stay in their process and that ``prepare`` makes again: models, caches.
    transient: AbstractSet[str] = frozenset()

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Called once for each copy, before its first tuple: connect here, not in ``__init__``."""

    def cleanup(self) -> None:
        """Called when a copy is no longer needed, on a best-effort basis.

        Not called when the process is killed.
        """


class Bolt(_Prepared):
    """A bolt that acks, fails and anchors by hand.

    ``output_fields = "word string"`` declares the default stream in Spark DDL, ``output_streams =
    {"name": "ddl"}`` several; on ``direct_streams = {"name"}`` only ``emit_direct`` emits.
    Attributes are pickled, and outlive the process; ``transient = {"model"}`` names attributes
    that ``prepare`` makes again in each process.

    Guarantee: the message at the root of a tuple's tree is acked only when this bolt has acked the
    tuple and the whole tree is done. Every tuple must be acked or failed; a tuple that is neither
    times out, and its message is delivered again. An exception from ``execute`` fails the tuple;
    the worker goes on.

    A tuple may be held over any number of steps, to be joined or counted with later ones: keep it
    in an attribute, and ack it, fail it or anchor to it later. A held tuple survives the loss of
    its process; when the driver restarts, the messages of held tuples are delivered again.
    """

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        """Process one tuple."""
        raise NotImplementedError("the bolt has no method execute")

    def flush(self, collector: OutputCollector) -> None:
        """Called after the last tuple of a step, before any of its acks leave: write in bulk,
        wait for confirms.

        If it raises, the step's tuples fail and everything emitted, acked or kept since the step
        began is discarded: the next step begins with the attributes and held tuples from before.
        """


class BasicBolt(_Prepared):
    """A bolt whose tuples are anchored and acked automatically: filters, functions, writers.

    It declares its streams and its ``transient`` attributes as a ``Bolt`` does.

    Emissions of ``execute`` are anchored to its tuple, which is acked when ``execute`` returns.
    When it raises, the tuple fails with the exception as the reason, its emissions are dropped, and
    the worker goes on.

    With ``set_bolt(…, config={"threads": 16})`` up to 16 calls of ``execute`` run at once, in
    threads of the task: for libraries that block. Then protect shared data with locks; ``emit``
    returns an empty list, because the tasks are chosen when the step ends; and attributes stay in
    their process, as an ``AsyncBolt``'s do.
    """

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        """Process one tuple."""
        raise NotImplementedError("the bolt has no method execute")

    def flush(self, collector: BasicCollector) -> None:
        """Called after the last tuple of a step, before any of its acks leave: write in bulk,
        wait for confirms.

        If it raises, every tuple of the step fails. Nothing can be emitted here: there is no tuple
        to anchor it to.
        """


class ArrowBolt(_Prepared):
    """A bolt that processes all tuples of a stream at once, as a ``pyarrow.RecordBatch``:
    one row per tuple.

    Guarantee: as for a ``BasicBolt``, row by row. The rows named to ``collector.fail`` fail, all
    others are acked when ``execute`` returns, and the message at the root of a row's tree is acked
    when everything anchored to it is done.

    When ``execute`` raises, that call has no effect, and it is called again with each half of the
    rows, and so on, until the bad rows stand alone: they fail, with the exception as the reason,
    and the other rows do not. So change your own attributes last in ``execute``, after all code
    that may raise. If no row is at fault (a service is down), fail all rows yourself, or do that
    work in ``flush``: then no row is tried again.
    """

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:
        """Process the tuples of one stream of one component. Called once per step for each stream
        that has tuples, and again if it raises.

        ``batch`` has the stream's columns and at least one row; ``collector`` names their source.
        The division into batches means nothing: it depends on the load, and a replayed row comes
        with other rows. With ``tick_tuple_freq_secs`` a tick comes in its own batch, after the
        others: ``collector.is_tick``.
        """
        raise NotImplementedError("the bolt has no method execute")

    def flush(self, collector: ArrowCollector) -> None:
        """Called after the last batch of a step, before any of its acks leave: write in bulk,
        wait for confirms.

        If it raises, every row of the step fails, the step's emissions are dropped, and the next
        step begins with the attributes from before. There are no rows to anchor to here: emit
        outside any tree (``anchors=None``).
        """


class BatchBolt(_Prepared):
    """A bolt for work that costs little more for many tuples than for one: database inserts, a
    bulk API, a model.

    Guarantee: as for a ``BasicBolt``, tuple by tuple. The tuples named to ``collector.fail`` fail,
    all others are acked when ``execute_batch`` returns. So none can be held for a later batch; use
    a ``Bolt`` for that.

    A batch has at most ``size`` tuples (500). A smaller batch is executed when its oldest tuple has
    waited ``wait_ms`` (200 milliseconds) for others; time in which the task was busy counts as
    waiting. With 0, a batch takes the tuples that are there. ``set_bolt(…, config={"size": 1000,
    "wait_ms": 50})`` overrides both. No batch is larger than the number of tuples in flight: a
    ``max_spout_pending`` below ``size`` makes each batch wait.

    When ``execute_batch`` raises, all tuples of the batch fail. With ``on_error = "split"`` it is
    called again with each half, and so on, until the bad tuples stand alone; only these fail. Split
    only work that may be repeated: the emissions of a call that raised are dropped, and so are its
    changes to values of the tuples, but its writes to other systems stay unless a transaction rolls
    them back. A call that emits more than ``max_output_bytes`` is always split.
    """

    size: int = 500
    wait_ms: float = 200
    on_error: Literal["fail", "split"] = "fail"

    def execute_batch(self, tuples: Sequence[Tuple], collector: BatchCollector) -> None:
        """Process the tuples, in the order in which they came; at least one.

        They may come from several streams: ``tup.source_component``, ``tup.source_stream``. A tick
        comes alone, after the others: ``tup.is_tick``. Change your own attributes last, after all
        code that may raise.
        """
        raise NotImplementedError("the bolt has no method execute_batch")

    def flush(self, collector: BatchCollector) -> None:
        """Called after each batch and its tick, before any of its acks leave.

        If it raises, every tuple fails, all emissions are dropped, and the next batch begins with
        the attributes from before. There is no tuple to anchor to here: emit outside any tree
        (``anchors=()``).
        """


class AsyncBolt(_Declaring):
    """A ``BasicBolt`` with coroutines: up to ``concurrency`` tuples are in progress at once in each
    task, and each is acked as soon as it is done.

    ``concurrency`` is 100; set another number in the class, or for one topology:
    ``set_bolt(…, config={"concurrency": 500})``.

    Emissions of ``execute`` are anchored to its tuple, which is acked when ``execute`` returns.
    When it raises, the tuple fails with the exception as the reason, and its emissions are dropped.
    Tuples begin in the order in which they arrive, and end in any order; emissions leave in any
    order, too.

    A call that lasts longer than the message timeout is cancelled, and its tuple fails: let
    ``CancelledError`` pass. A call that ignores the cancellation keeps its place, and after the
    same time again its process is replaced. When a run ends, calls in progress are cancelled; their
    tuples are executed again in the next run.

    All ``AsyncBolt`` tasks of a process share one event loop, in one thread. A call that blocks
    it (``time.sleep``, a library that is not async, long computations) delays all of them, and is
    named in the log: use ``asyncio.to_thread``, or a ``BasicBolt`` with ``threads``.

    Attributes stay in their process, because unfinished calls use them: data that must outlive the
    process belongs in a service. ``prepare`` makes them again. If ``flush`` raises, the tuples of
    its step fail; the copy is kept, because other calls are using it.
    """

    concurrency: int = 100

    def prepare(
        self, config: Mapping[str, Any], context: TopologyContext
    ) -> Awaitable[None] | None:
        """Called once for each copy, on the event loop, before its first tuple: open sessions and
        pools here. May be async.
        """

    async def execute(self, tup: Tuple, collector: AsyncCollector) -> None:
        """Process one tuple."""
        raise NotImplementedError("the bolt has no method execute")

    def flush(self, collector: AsyncCollector) -> Awaitable[None] | None:
        """Called after the calls of a step have returned, before any of its acks leave, while other
        calls go on. May be async.

        If it raises, every tuple of the step fails. Nothing can be emitted here: there is no tuple
        to anchor it to.
        """

    def cleanup(self) -> Awaitable[None] | None:
        """Called when a copy is no longer needed, on a best-effort basis. May be async.

        Not called when the process is killed.
        """


@cache
def slots_of(kind: type) -> Sequence[str]:
    """Return the names of the ``__slots__`` of a class and its bases, which a dataclass with
    ``slots=True`` has.
    """
    return [
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    ]
