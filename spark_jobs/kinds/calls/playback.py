"""The bolt that a step executes in the place of one with calls: it repeats what they did.

So groupings, ids of edges, counts, commits and what follows a death are those of every bolt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tiercel.spark_jobs.bolts.async_bolt import AsyncBolt
from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.bolts.collecting import BasicCollector
from tiercel.spark_jobs.bolts.tuples import OPEN, Tuple
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.calls.caller import Caller
from tiercel.spark_jobs.kinds.calls.flight import Flight


class Playback(BasicBolt):
    """Stands for one copy of a bolt. The task's thread only.

    A tuple whose call was not given is called when its turn comes, and waited for: a step that is
    repeated, and one that looks for the tuple that kills the process.
    """

    def __init__(self, bolt: AsyncBolt | BasicBolt, caller: Caller, places: int) -> None:
        """At most ``places`` of the calls that it makes itself are under way at once."""
        self.bolt = bolt
        self._caller = caller
        self._places = places
        # By row of the step's input.
        self._calls: dict[int, Call] = {}
        self._together = False

    def load(self, calls: Sequence[Call], *, together: bool) -> None:
        """Take the calls of the next step, in the order of its tuples, or none of them.

        ``together``: calls that are not given may be made at once.
        """
        self._calls = dict(enumerate(calls))
        self._together = together

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        record = cast("Record", tup.record)
        if not self._calls and self._together:
            self._calls = self._called([one for one in record.fresh if one.state == OPEN])
        call = (self._calls or self._called([tup]))[tup.row]
        for report in call.reports:
            collector.report_error(report)
        for emitted in call.emissions:
            if emitted.task is None:
                collector.emit(emitted.values, emitted.stream)
            else:
                collector.emit_direct(emitted.task, emitted.values, emitted.stream)
        if call.error is not None:
            raise call.error
        record.returned_ns += call.took_ns

    def flush(self, collector: BasicCollector) -> None:
        recorder = self._caller.recorder(None)
        try:
            self._caller.do(self.bolt.flush, recorder)
        finally:
            for report in recorder.reports:
                collector.report_error(report)

    def _called(self, tuples: Sequence[Tuple]) -> dict[int, Call]:
        flight = Flight(self._caller, self._places)
        for tup in tuples:
            flight.add(Call(tup=tup))
        return {call.tup.row: call for call in flight.finish(self.bolt.execute)}
