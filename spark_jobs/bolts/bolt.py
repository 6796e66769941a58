"""The contract of a bolt: its input, and its duties.

A bolt is a plain Python object. The one in the topology is a prototype: each task works on a copy
of its own, and one thread calls it. The copy's attributes outlive its process: they are pickled
when a step ends and they have changed, and another process begins with them. What cannot be pickled
(connections, locks) and attributes named in ``transient`` stay where they are, and ``prepare``
makes them again in the next process. A driver that starts anew begins with fresh copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

# A file of bolts imports this one, and Arrow, behind the others, takes a moment.
if TYPE_CHECKING:
    from tiercel.spark_jobs.bolts.collecting import BasicCollector, OutputCollector
    from tiercel.spark_jobs.bolts.context import TopologyContext
    from tiercel.spark_jobs.bolts.tuples import Tuple


class _Declaring:
    # The default stream's fields in Spark DDL: ``"word string, n long"``.
    output_fields: str = ""
    # Several streams: name to DDL.
    output_streams: Mapping[str, str] = MappingProxyType({})
    # Streams on which only ``emit_direct`` emits.
    direct_streams: AbstractSet[str] = frozenset()


class _Prepared(_Declaring):
    # Attributes that stay in their process: models, caches, anything that ``prepare`` can make
    # again.
    transient: AbstractSet[str] = frozenset()

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Called once for each copy, before its first tuple: connect here, not in ``__init__``."""

    def cleanup(self) -> None:
        """Called when a copy is not needed any more, if the process gets to it.

        Not called when the process is killed.
        """


class Bolt(_Prepared):
    """A bolt that acks, fails and anchors by hand.

    ``output_fields = "word string"`` declares the default stream in Spark DDL, ``output_streams =
    {"name": "ddl"}`` several; ``direct_streams = {"name"}`` are those on which only ``emit_direct``
    emits. Attributes are pickled, and outlive the process; ``transient = {"model"}`` names those
    that ``prepare`` makes again in each process.

    Guarantee: the message at the root of a tuple's tree is acked only when this bolt acked the
    tuple and the whole tree is done. Every tuple must be acked or failed; one that is neither
    times out, and its message is delivered again. An exception out of ``execute`` fails the tuple;
    the worker goes on.

    A tuple may be held over any number of steps, to be joined or counted with later ones: keep it
    in an attribute, and ack it, fail it or anchor to it when its time has come. A tuple that it
    holds survives the loss of its process; when the driver starts anew, the messages of held tuples
    are delivered again.
    """

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        """Process one tuple."""
        raise NotImplementedError

    def flush(self, collector: OutputCollector) -> None:
        """Called after the last tuple of a step, before any of its acks leave: write in bulk,
        wait for confirms.

        If it raises, the step's tuples fail and nothing that was emitted, acked or kept since
        its beginning counts: the next one begins with what the task was before, tuples that
        it held among it.
        """


class BasicBolt(_Prepared):
    """A bolt whose tuples are anchored and acked for it: filters, functions, writers.

    It declares its streams, and its ``transient`` attributes, as a ``Bolt`` does.

    What ``execute`` emits is anchored to its tuple, which is acked when ``execute`` returns. When
    it raises, the tuple fails with the exception as the reason, its emissions are dropped, and
    the worker goes on.

    With ``set_bolt(…, config={"threads": 16})`` up to 16 calls of ``execute`` run at once, in
    threads of the task: for libraries that block. Then guard what the calls share; ``emit`` returns
    an empty list, for the tasks are chosen when the step ends; and attributes stay in their
    process, as an ``AsyncBolt``'s do.
    """

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        """Process one tuple."""
        raise NotImplementedError

    def flush(self, collector: BasicCollector) -> None:
        """Called after the last tuple of a step, before any of its acks leave: write in bulk,
        wait for confirms.

        If it raises, every tuple of the step fails. Nothing can be emitted here: there is no tuple
        to anchor it to.
        """
