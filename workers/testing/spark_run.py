"""Everything that travels to Spark's Python workers when the kit runs a topology: the run, and the
places of the test's own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from tiercel.queues.inbox.contract import Inboxes
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.spark.run import Run
from tiercel.workers.testing.capture import CopyingInboxes
from tiercel.workers.testing.imports import Imports


@dataclass(frozen=True, kw_only=True)
class WatchedRun(Run):
    """A run of which the kit sees what components emit, and whose ticks come
    from simulated time.
    """

    imports: Imports

    def open_inboxes(self) -> Inboxes:
        return CopyingInboxes(super().open_inboxes(), self.topology)

    @contextmanager
    def opened(self) -> Iterator[Around]:
        """Without ticks: the kit appends them to the inboxes."""
        with super().opened() as around:
            yield replace(around, ticks={})

    def __reduce__(self) -> tuple[Callable[..., WatchedRun], tuple[Imports, Mapping[str, Any]]]:
        """The imports come first: when they are unpickled, what follows may name the
        test's own modules.
        """
        others = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "imports"
        }
        return _run, (self.imports, others)


def _run(imports: Imports, others: Mapping[str, Any]) -> WatchedRun:
    return WatchedRun(imports=imports, **others)
