"""The contract of a bolt whose work waits: for an API, a database, a model."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from tiercel.spark_jobs.bolts.bolt import _Declaring

# As in ``bolt``.
if TYPE_CHECKING:
    from tiercel.spark_jobs.bolts.collecting import AsyncCollector
    from tiercel.spark_jobs.bolts.context import TopologyContext
    from tiercel.spark_jobs.bolts.tuples import Tuple


class AsyncBolt(_Declaring):
    """A ``BasicBolt`` with coroutines: up to ``concurrency`` tuples are under way at once in each
    task, and each is acked on its own when it is done.

    ``concurrency`` is 100; set another number in the class, or for one topology:
    ``set_bolt(…, config={"concurrency": 500})``.

    What ``execute`` emits is anchored to its tuple, which is acked when ``execute`` returns. When
    it raises, the tuple fails with the exception as the reason, and its emissions are dropped.
    Tuples begin in the order in which they arrive, and end in any order; emissions leave in any
    order, too.

    A call that lasts longer than the message timeout is cancelled, and its tuple fails: let
    ``CancelledError`` pass. One that goes on nevertheless keeps its place, and after as long again
    its process is replaced. When a run ends, calls under way are cancelled; their tuples are
    executed again in the next one.

    All ``AsyncBolt`` tasks of a process share one event loop, in one thread. A call that blocks
    it (``time.sleep``, a library that is not async, long computations) holds all of them up, and is
    named in the log: use ``asyncio.to_thread``, or a ``BasicBolt`` with ``threads``.

    Attributes stay in their process, for they show calls that are not done: anything that must
    outlive the process belongs in a service. ``prepare`` makes them again. If ``flush`` raises, the
    tuples of its step fail; the copy is kept, for other calls are using it.
    """

    concurrency: int = 100

    def prepare(
        self, config: Mapping[str, Any], context: TopologyContext
    ) -> Awaitable[None] | None:
        """Called once for each copy, on the loop, before its first tuple: open sessions and pools
        here. May be async.
        """

    async def execute(self, tup: Tuple, collector: AsyncCollector) -> None:
        """Process one tuple."""
        raise NotImplementedError

    def flush(self, collector: AsyncCollector) -> Awaitable[None] | None:
        """Called after the calls of a step have returned, before any of its acks leave; other calls
        go on meanwhile. May be async.

        If it raises, every tuple of the step fails. Nothing can be emitted here: there is no tuple
        to anchor it to.
        """

    def cleanup(self) -> Awaitable[None] | None:
        """Called when a copy is not needed any more, if the process gets to it. May be async.

        Not called when the process is killed.
        """
