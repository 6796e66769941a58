"""One call among many that lasts too long, as the watchdog sees it."""

from __future__ import annotations

from collections.abc import Callable

from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.running.calls.call import Call
from tiercel.spark_jobs.suspects.watchdog import WatchedStep


class HangingCall:
    """``WatchedStep`` of one call."""

    def __init__(
        self, call: Call, component: str, outputs: Outputs, step: WatchedStep | None
    ) -> None:
        """``step`` has the tuple where the call does not know its trees."""
        self.call = call
        self.record = Record(component, outputs)
        self.record.doing = call.tup
        lineage = call.lineage
        self._roots: Callable[[int], list[int]] = (
            (lambda row: roots_of(lineage, row))
            if lineage is not None
            else (step.roots if step is not None else lambda row: [])  # noqa: ARG005 - none is known
        )

    def roots(self, row: int) -> list[int]:
        """The roots of its tuple."""
        return self._roots(row)
