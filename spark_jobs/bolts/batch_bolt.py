"""The contract of a bolt that is given several tuples at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tiercel.spark_jobs.bolts.bolt import _Prepared

if TYPE_CHECKING:
    from tiercel.spark_jobs.bolts.collecting import BatchCollector
    from tiercel.spark_jobs.bolts.tuples import Tuple


class BatchBolt(_Prepared):
    """A bolt for work that costs little more for many tuples than for one: rows into a database, a
    bulk API, a model.

    Guarantee: as for a ``BasicBolt``, tuple by tuple. The tuples that ``collector.fail`` named
    fail, all others are acked when ``execute_batch`` returns. So none can be held for a later
    batch; use a ``Bolt`` for that.

    A batch has at most ``size`` tuples (500). One that is not full is executed when its oldest
    tuple has waited ``wait_ms`` (200 milliseconds) for others; what came while the task was at work
    has waited already. 0: a batch is the tuples that are there. ``set_bolt(…, config={"size": 1000,
    "wait_ms": 50})`` overrides both. No batch is larger than the number of tuples in flight: a
    ``max_spout_pending`` below ``size`` makes each batch wait.

    When ``execute_batch`` raises, all tuples of the batch fail. With ``on_error = "split"`` it is
    called again with each half, and so on, until the tuples that it raises for stand alone; only
    these fail. Split only what may be done again: the call that raised counts for nothing here, but
    what it wrote elsewhere stays, unless a transaction takes it back. A call that emits more than
    ``max_output_bytes`` is split in any case.
    """

    size: int = 500
    wait_ms: float = 200
    on_error: Literal["fail", "split"] = "fail"

    def execute_batch(self, tuples: Sequence[Tuple], collector: BatchCollector) -> None:
        """Process the tuples, in the order in which they came; at least one.

        They may come from several streams: ``tup.source_component``, ``tup.source_stream``. A tick
        comes by itself, after the others: ``tup.is_tick``. Change your own attributes last, after
        what may raise.
        """
        raise NotImplementedError

    def flush(self, collector: BatchCollector) -> None:
        """Called after each batch and its tick, before any of its acks leave.

        If it raises, every tuple fails, nothing that was emitted leaves, and the next batch begins
        with the attributes from before. There is no tuple to anchor to here: its emissions must be
        in no tree (``anchors=()``).
        """
