"""The place where a run has its tasks, and how much of it the run uses.

As the driver's loop sees it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from tiercel.spark_jobs.spark.executors import Readiness
from tiercel.spark_jobs.spark.run import Run

_LOOK_S = 5.0
# Looks in a row: an executor that comes and goes is not worth a new run.
_SURE_LOOKS = 3


class Tasks(Protocol):
    """The tasks of one run: ``LongTasks``, or a test's."""

    @property
    def active(self) -> bool: ...

    @property
    def fault(self) -> str | None: ...

    @property
    def unfit(self) -> str:
        """Why executors cannot run them, again and again; empty: they can."""
        ...

    @property
    def waiting(self) -> int:
        """Number of them for which there is no slot now: Spark starts them when there is one."""
        ...

    def wait(self, seconds: float) -> bool: ...

    def cancel(self) -> None: ...


class Hosts(Protocol):
    """The place where runs have their tasks: Spark."""

    @property
    def free(self) -> int:
        """Return the number that could run beside those that do, at once."""
        ...

    def check_alive(self) -> None:
        """After a failure: raise SparkEndedError if no run can have tasks there any more."""
        ...

    def ready(self, wanted: int) -> Readiness:
        """Return the number of hosts that can run at once, where none runs.

        Those of an executor that does not answer, or cannot start Python, are not counted. It waits
        some seconds for ``wanted``.
        """
        ...

    def start(self, run: Run) -> Tasks:
        """Start the tasks; returns at once."""
        ...

    def silenced(self) -> AbstractContextManager[None]:
        """Keep tasks that are cut off from printing traces."""
        ...


class Width:
    """Number of hosts over which the runs of one driver spread their tasks.

    Fewer while an executor is away, and as many again.
    """

    def __init__(self) -> None:
        self._most = 0
        self._lacks = False
        self._looks = 0
        self._look_at = float("-inf")

    def began(self, hosts: int, *, of: int, unfit: int = 0) -> None:
        """A run began on so many hosts, which have ``of`` bolt tasks.

        ``unfit`` is how many more there will be when executors can start Python.
        """
        self._most = max(self._most, hosts + unfit)
        self._lacks = hosts < min(of, self._most)
        self._looks = 0

    def may_return(self, hosts: Hosts, now: float) -> bool:
        """Tell whether a slot that an earlier run had is surely free again."""
        if not self._lacks or now < self._look_at:
            return False
        self._look_at = now + _LOOK_S
        self._looks = self._looks + 1 if hosts.free > 0 else 0
        return self._looks >= _SURE_LOOKS
