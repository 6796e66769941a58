"""Helpers for tests of the inboxes."""

from __future__ import annotations

from datetime import timedelta

from tiercel.acker.inbox.chunk import Parcel
from tiercel.acker.inbox.contract import Claims, Covered, Sender

NOW = timedelta(0)
SOON = timedelta(seconds=30)
RUN = "run"
# Tasks with inboxes, which lie on different servers if there are two.
ONE = 1
TWO = 7
GONE = 9
# Four tasks that share one line, and ten on two servers, or with several hash tags.
FOUR = range(20, 24)
TEN = range(32, 42)
FIRST = Sender(task=2, attempt=1)
SECOND = Sender(task=2, attempt=2)
OTHER = Sender(task=3, attempt=1)


def parcel(*chunks, target=ONE, tuples=None, bounded=True, part=0):
    return Parcel(
        target=target,
        chunks=chunks,
        tuples=tuples or [1] * len(chunks),
        bounded=bounded,
        part=part,
    )


def put(inboxes, number, *parcels, sender=FIRST, run=RUN):
    """Append parcels, and return the result of each."""
    return [effect.perform() for effect in inboxes.append(run, sender, number, parcels)]


def opened(inboxes, task=ONE, run=RUN, line=None):
    """Open the inbox for a new attempt."""
    return inboxes.open(run, task, inboxes.draw(run, task), line)


def take(inbox, tuples=1000, size=2**30, wait=NOW, claims=0, more=0):
    return inbox.take(tuples, size, wait, None, Claims(claims, more))


def claimed(entries):
    """Return each entry as (payload, row of the first tuple, number of tuples)."""
    return [(entry.payload, entry.first, entry.tuples) for entry in entries]


def payloads(entries):
    return [entry.payload for entry in entries]


def covering(step, entries, part=None, ticks=0):
    """Cover these entries as a whole."""
    return Covered(
        step=step,
        whole=tuple(entry.position for entry in entries),
        part=part or {},
        ticks=ticks,
        tuples=sum(entry.tuples for entry in entries),
        bytes=sum(len(entry.payload) for entry in entries),
    )


def commit(inbox, step, entries, part=None, ticks=0):
    """Seal and finish a step."""
    sealed = inbox.seal(covering(step, entries, part, ticks)).perform()
    return sealed and inbox.finish(step).perform()
