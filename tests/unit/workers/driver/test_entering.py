"""A run takes over the remains of the previous one: everything is released, whichever process dies
in between, and nothing blocks it.
"""

from __future__ import annotations

import struct
from datetime import timedelta

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.chunks import chunk
from tests.support.inboxes import commit, covering, opened, parcel, put, take
from tests.support.pump import Source
from tiercel import BasicBolt, RedisUnavailableError, TopologyBuilder
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.contract import Sender, StaleAttemptError
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Token
from tiercel.acker.memory import MemoryLedger
from tiercel.spark_jobs.suspects.book import Case, Suspect
from tiercel.workers.driver.process import enter

SPEC = LedgerSpec(topology="t", urls=(), shards=1, owners=1, message_timeout=timedelta(seconds=30))
FIRST = "1"
SECOND = "2"
BOLTS = (2, 3)
SIGNATURE = b"\0" * 32


class DeadError(Exception):
    """The driver's process dies here."""


def topology(tasks=2):
    builder = TopologyBuilder("t")
    builder.set_spout("source", Source())
    builder.set_bolt("bolt", BasicBolt(), parallelism=tasks).shuffle_grouping("source")
    return builder.build()


class Left:
    """Remains of a first run: messages in inboxes, and in bolts that hold them."""

    def __init__(self):
        self.inboxes, self.ledger, self.book = MemoryInboxes(), MemoryLedger(SPEC), MemoryCaseBook()
        self.feed = self.ledger.feed(1)
        assert self.enter(FIRST) == 0

    def enter(self, run, inboxes=None, ledger=None, book=None, tasks=2):
        return enter(
            run, topology(tasks), inboxes or self.inboxes, ledger or self.ledger, book or self.book
        )

    def suspects(self, root):
        """Let a process die on this tuple, twice."""
        guilty = Suspect(component="bolt", task=2, seed=1, roots=(root,), deaths=1)
        token = Token(run=FIRST, task=2, step=0)
        self.book.begin(token, Case(suspects=(guilty,)))
        self.book.note(token, guilty)

    def wait_in(self, task, *payloads, number=1, run=FIRST):
        assert put(self.inboxes, number, parcel(*payloads, target=task), run=run) == [Appended.DONE]

    def held_by(self, task, *roots):
        """Prepare a bolt task whose last finished step left these roots in its hands."""
        inbox = opened(self.inboxes, task, FIRST)
        self.wait_in(task, chunk(*roots))
        entries = take(inbox)
        assert inbox.seal(covering(1, entries), SIGNATURE + snapshot(*roots)).perform()
        assert inbox.finish(1).perform()

    def register(self, *roots):
        self.ledger.register(1, list(roots), [1] * len(roots))

    def released(self):
        return sorted(self.feed.read(timedelta(0)).released)


def snapshot(*roots):
    """Build a snapshot: an empty frame, the bolt's attributes, the places of its tuples, facts
    about them, the roots that threads held, and the chunks.
    """
    places = struct.pack(f"<{len(roots)}q", *range(len(roots)))
    return b"".join(
        struct.pack(">I", len(part)) + part
        for part in (b"", b"attributes", places, places * 2, b"", chunk(*roots))
    )


@pytest.fixture
def left():
    return Left()


def test_what_waits_and_what_bolts_hold_is_released_and_nothing_else(left):
    left.register(10, 11, 12, 13, 14)
    left.held_by(3, 13, 14)
    left.wait_in(2, chunk(10, 11), chunk(11, 99))
    assert left.enter(SECOND) == 4
    assert left.released() == [10, 11, 13, 14]
    assert left.ledger.pending() == 1
    assert all(one.tuples == 0 for one in left.inboxes.figures(BOLTS).values())
    assert left.inboxes.snapshots(SECOND) == []


def test_where_nothing_was_left_nothing_is_released(left):
    assert left.enter(SECOND) == 0


def test_more_than_one_look_shows_is_released_too(left, monkeypatch):
    monkeypatch.setattr("tiercel.acker.inbox.memory.DRAINED_TUPLES", 1)
    left.register(*range(10, 30))
    left.wait_in(2, *(chunk(root) for root in range(10, 30)))
    assert left.enter(SECOND) == 20


def test_what_a_topology_of_another_shape_left_is_released_by_one_that_lacks_its_tasks(left):
    left.register(10, 11)
    left.held_by(3, 11)
    left.wait_in(3, chunk(10), number=2)
    assert left.enter(SECOND, tasks=1) == 2
    assert left.released() == [10, 11]


class Mortal:
    """Passes calls on, and dies before or after the call with this number."""

    def __init__(self, inner, counter, at, after):
        self.inner = inner
        self.counter = counter
        self.at = at
        self.after = after

    def __getattr__(self, name):
        call = getattr(self.inner, name)

        def mortal(*arguments):
            self.counter[0] += 1
            if self.counter[0] == self.at and not self.after:
                raise DeadError(name)
            result = call(*arguments)
            if self.counter[0] == self.at:
                raise DeadError(name)
            return result

        return mortal


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("run", [SECOND, "3"], ids=["the same run", "a later run"])
def test_a_driver_that_dies_anywhere_in_between_leaves_nothing_out(after, run):
    died = 0
    for at in range(1, 30):
        left = Left()
        left.register(10, 11, 12, 13, 14)
        left.suspects(14)
        left.held_by(3, 12, 13)
        left.wait_in(2, chunk(10), chunk(14))
        left.wait_in(3, chunk(11), number=2)
        counter = [0]
        mortals = [
            Mortal(each, counter, at, after) for each in (left.inboxes, left.ledger, left.book)
        ]
        try:
            left.enter(SECOND, *mortals)
        except DeadError:
            died += 1
            left.enter(run)
        outcomes = left.feed.read(timedelta(0))
        assert sorted(outcomes.released) == [10, 11, 12, 13], f"dead at call {at}"
        assert [failure.root for failure in outcomes.failed] == [14], f"dead at call {at}"
        assert left.ledger.pending() == 0
        assert left.enter("4") == 0
    assert 10 < died < 29


def test_a_release_that_redis_did_not_take_is_made_again(left):
    left.register(10)
    left.wait_in(2, chunk(10))

    class Away(MemoryLedger):
        def release(self, roots):
            raise RedisUnavailableError("away")

    with pytest.raises(RedisUnavailableError):
        left.enter(SECOND, ledger=Away(SPEC))
    assert left.enter(SECOND) == 1


UNREADABLE = {"noise": b"\xff" * 50, "nothing": b"", "cut off": chunk(11)[:-20]}


@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE)
def test_a_chunk_that_cannot_be_read_is_passed_over_with_a_line_and_holds_up_no_other(
    left, payload, caplog
):
    left.register(10, 12)
    left.wait_in(2, chunk(10), payload, chunk(12))
    assert left.enter(SECOND) == 2
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"skipping {len(payload)} bytes in the inbox of task 2" in line
    assert left.enter(SECOND) == 0
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 50, SIGNATURE + b"\xff" * 50, SIGNATURE + snapshot(7)[:-20]]
)
def test_a_snapshot_that_cannot_be_read_is_passed_over_with_a_line_and_holds_up_no_other(
    left, content, caplog
):
    left.register(12)
    left.held_by(3, 12)
    inbox = opened(left.inboxes, 2, FIRST)
    left.wait_in(2, chunk(10))
    assert inbox.seal(covering(1, take(inbox)), content).perform()
    assert inbox.finish(1).perform()
    assert left.enter(SECOND) == 1
    [line] = [record.getMessage() for record in caplog.records]
    assert "skipping the snapshot of task 2" in line
    assert left.enter(SECOND) == 0
    assert len(caplog.records) == 1


def test_from_then_on_the_run_before_changes_nothing(left):
    left.register(10)
    inbox = opened(left.inboxes, 2, FIRST)
    left.enter(SECOND)
    assert put(left.inboxes, 2, parcel(chunk(10), target=2), run=FIRST) == [Appended.STALE]
    with pytest.raises(StaleAttemptError):
        take(inbox)
    assert not left.ledger.fence(FIRST, 2, 9)


def test_an_older_driver_that_comes_late_takes_nothing_away(left):
    left.register(10)
    left.enter(SECOND)
    left.wait_in(2, chunk(10), run=SECOND)
    for late in (FIRST, f"{FIRST}-ended"):
        with pytest.raises(StaleAttemptError):
            left.enter(late)
    inbox = opened(left.inboxes, 2, SECOND)
    assert commit(inbox, 1, take(inbox))
    assert left.ledger.fence(SECOND, 2, 1)
    assert left.released() == []


def test_a_driver_that_was_overtaken_between_two_of_its_calls_takes_nothing_away(left):
    class Slow(MemoryInboxes):
        """The caller sleeps after it has adopted, and another driver enters meanwhile."""

        def adopt(self, run, tasks):
            left.inboxes.adopt(run, tasks)
            left.enter("3")

        def __getattribute__(self, name):
            return (
                getattr(left.inboxes, name)
                if name != "adopt"
                else object.__getattribute__(self, name)
            )

    with pytest.raises(StaleAttemptError):
        left.enter(SECOND, Slow())
    assert left.ledger.fence("3", 2, 1), "the ledger is the later run's too"
    assert put(
        left.inboxes, 1, parcel(chunk(10), target=2), sender=Sender(task=1, attempt=1), run="3"
    ) == [Appended.DONE]


def test_what_killed_processes_fails_with_blame_and_is_not_released(left):
    left.register(10, 11)
    left.wait_in(2, chunk(10, 11))
    left.suspects(10)
    assert left.enter(SECOND) == 1
    assert left.book.cases() == []
    outcomes = left.feed.read(timedelta(0))
    assert [failure.root for failure in outcomes.failed] == [10]
    assert outcomes.released == [11]
