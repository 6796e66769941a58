"""The contract of an engine: what runs the bolts of a ``LocalCluster``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiercel.acker.inbox.contract import Inboxes
from tiercel.acker.ledger import Ledger
from tiercel.acker.metrics.contract import Metrics
from tiercel.acker.metrics.traces import KnownError
from tiercel.spark_jobs.state.store import StateStore


class Engine(Protocol):
    """Runs the bolts of one topology; used by one thread, between ``start`` and ``close``.

    Spouts and time are not its business: the spout is the only authority on timeouts, so both run
    in the test's process.
    """

    @property
    def ledger(self) -> Ledger:
        """Ledger in which the spouts register their tuples. Nothing in it expires by real time."""
        ...

    @property
    def inboxes(self) -> Inboxes:
        """Inboxes of the bolts, in which there is always room."""
        ...

    @property
    def run_id(self) -> str:
        """The run to which the inboxes belong."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Metrics of the spouts."""
        ...

    @property
    def state(self) -> StateStore:
        """Store of the stateful bolts."""
        ...

    @property
    def next_at(self) -> float | None:
        """Simulated time at which the bolts go on by themselves; None: they do not.

        Then ``work`` must be called.
        """
        ...

    def start(self) -> None:
        """Become ready. Raises SparkJobsError or AckerError, one line that says what to do."""
        ...

    def work(self) -> None:
        """Let the bolts work until every inbox is empty.

        Then the ledger knows what became of all trees.

        Raises LocalClusterError if the bolts cannot be run.
        """
        ...

    def tracebacks(self) -> Sequence[KnownError]:
        """Return the errors that bolts have raised so far, the newest first."""
        ...

    def close(self) -> None:
        """Clean the bolts up and remove every trace. Idempotent, also when ``start`` has failed."""
        ...
