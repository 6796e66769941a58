"""A run takes over what the one before left.

Its messages are released: they come again, without blame.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tiercel.acker.errors import BadChunkError
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.inbox.contract import Inboxes
from tiercel.acker.inbox.records import StaleAttemptError
from tiercel.acker.ledger import Ledger
from tiercel.spark_jobs.snapshots.packing import body_of, held_roots, parted
from tiercel.spark_jobs.suspects.book import CaseBook
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.placement import inboxes_of

log = logging.getLogger(__name__)


def enter(run: str, topology: Topology, inboxes: Inboxes, ledger: Ledger, book: CaseBook) -> int:
    """Make inboxes and ledger those of ``run``; returns how many messages were released.

    In this order: what older runs still write is refused, then what they left is read, released,
    and only then deleted, so that a driver that dies in between leaves nothing out. May be
    repeated. Raises StaleAttemptError if a later run has begun.
    """
    inboxes.adopt(run, inboxes_of(topology))
    if not ledger.begin(run):
        raise StaleAttemptError(f"run {run} is over: a later one has begun")
    _fail_guilty(book, ledger)
    return _release_waiting(run, inboxes, ledger) + _release_held(run, inboxes, ledger)


def _fail_guilty(book: CaseBook, ledger: Ledger) -> None:
    """Fail the tuples that killed processes of the earlier run.

    They must not be released without blame first.
    """
    failures = [failure for case in book.cases() for failure in case.after_death().failures]
    if failures:
        ledger.fail(failures)
    book.forget()


def _release_waiting(run: str, inboxes: Inboxes, ledger: Ledger) -> int:
    released = 0
    while found := inboxes.drain(run):
        for task, entries in found:
            released += ledger.release(_readable_roots(task, [entry.payload for entry in entries]))
            inboxes.discard(run, task, [entry.position for entry in entries])
    return released


def _release_held(run: str, inboxes: Inboxes, ledger: Ledger) -> int:
    released = 0
    for task, snapshot in inboxes.snapshots(run):
        _, signed = parted(snapshot)
        try:
            # That of an order alone holds nothing.
            held = held_roots(body_of(signed)) if signed or not snapshot else ()
            released += ledger.release(held)
        except ValueError as error:
            log.warning(
                "passing over the snapshot of task %d: %s; what it held times out", task, error,
                extra={"event": "snapshot_unreadable"},
            )  # fmt: skip
        inboxes.forget_snapshot(run, task)
    return released


def _readable_roots(task: int, payloads: Sequence[bytes]) -> list[int]:
    roots: set[int] = set()
    for payload in payloads:
        try:
            roots.update(decode(payload).lineage.roots.tolist())
        except BadChunkError as error:
            log.warning(
                "passing over %d bytes in the inbox of task %d: %s; what was in them times out",
                len(payload), task, error,
                extra={"event": "chunk_unreadable"},
            )  # fmt: skip
    return sorted(roots)
