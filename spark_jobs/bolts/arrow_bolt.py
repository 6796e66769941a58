"""The contract of a bolt that is given whole record batches."""

from __future__ import annotations

import pyarrow as pa

from tiercel.spark_jobs.bolts.bolt import _Prepared
from tiercel.spark_jobs.bolts.collecting import ArrowCollector


class ArrowBolt(_Prepared):
    """A bolt that processes all tuples of a stream at once, as a ``pyarrow.RecordBatch``:
    one row per tuple.

    Guarantee: as for a ``BasicBolt``, row by row. The rows that ``collector.fail`` named fail, all
    others are acked when ``execute`` returns, and the message at the root of a row's tree is acked
    when all that was anchored to it is done.

    When ``execute`` raises, nothing of that call counts, and it is called again with each half of
    the rows, and so on, until the rows that it raises for stand alone: those fail, with the
    exception as the reason, and their neighbours do not. Hence change your own attributes last in
    ``execute``, after what may raise. If the fault is no row's (a service is away), fail all rows
    yourself, or do such work in ``flush``: then no row is tried again.
    """

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:
        """Process the tuples of one stream of one component: once per step for each stream that has
        any, unless it raises.

        ``batch`` has the stream's columns and at least one row; where the rows come from is in
        ``collector``. Which rows come together means nothing: it follows the load, and a replayed
        row comes among others. With ``tick_tuple_freq_secs`` a tick comes by itself, after the
        others: ``collector.is_tick``.
        """
        raise NotImplementedError

    def flush(self, collector: ArrowCollector) -> None:
        """Called after the last batch of a step, before any of its acks leave: write in bulk,
        wait for confirms.

        If it raises, every row of the step fails, nothing that was emitted since its beginning
        leaves, and the next one begins with the attributes from before. There are no rows to anchor
        to here: its emissions must be in no tree (``anchors=None``).
        """
