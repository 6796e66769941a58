"""The spout worker's loop, on memory twins and with the real clock."""

import itertools
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from tests.support.orders import MemoryControl
from tests.support.presences import MemoryPresences
from tests.support.spout_worker import RUN, SPEC, MemoryWorker
from tests.support.waiting import wait_until
from tiercel import BasicBolt, RedisUnavailableError, Spout, TopologyBuilder
from tiercel.acker.effects import LocalEffect
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.inbox.contract import Bounds
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.ledger import Failure, Token, Updates
from tiercel.acker.memory import MemoryLedger
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Lease, Presence
from tiercel.workers.spout.admission import Admission
from tiercel.workers.spout.loop import Patience, SpoutSettings
from tiercel.workers.spout.outbox import Attendance

SINK = 2


class ListSpout(Spout):
    """Emits the tuples of a list; records its calls and their threads."""

    output_fields = "n long"

    def __init__(self, count):
        self.waiting = list(range(count))
        self.told = []
        self.expected = []
        self.switched = []
        self.threads = set()

    def next_tuple(self, collector):
        self.threads.add(threading.get_ident())
        if self.waiting:
            n = self.waiting.pop(0)
            collector.emit([n], msg_id=f"message {n}")

    def ack(self, msg_id):
        self._note("ack", msg_id)

    def fail(self, msg_id, reason=""):
        self._note("fail", msg_id, reason)

    def release(self, msg_id):
        self._note("release", msg_id)

    def expect(self, tuples):
        self.threads.add(threading.get_ident())
        self.expected.append(tuples)

    def activate(self):
        self.switched.append("activate")

    def deactivate(self):
        self.switched.append("deactivate")

    def close(self, grace):
        self._note("close")

    def _note(self, *what):
        self.threads.add(threading.get_ident())
        self.told.append(what)


class StormSpout(ListSpout):
    """Its fail takes only the message id, and release is not overridden."""

    def fail(self, msg_id):
        self._note("fail", msg_id)

    def release(self, msg_id):
        Spout.release(self, msg_id)


class ManySpout(ListSpout):
    """Emits many tuples at a time."""

    def __init__(self, count):
        super().__init__(count)
        self.limits = []

    def next_tuple(self, collector):
        raise AssertionError("not called")

    def next_tuples(self, collector, limit):
        self.limits.append(limit)
        taken = self.waiting[:limit]
        self.waiting = self.waiting[limit:]
        if taken:
            collector.emit_all([[n] for n in taken], [f"message {n}" for n in taken])

    def ack_all(self, msg_ids):
        self._note("ack all", tuple(msg_ids))


class OneByOneSpout(ManySpout):
    """The method overridden last takes precedence."""

    def next_tuple(self, collector):
        ListSpout.next_tuple(self, collector)

    def ack(self, msg_id):
        self._note("ack", msg_id)


class Sink(BasicBolt):
    pass


class SpoutBench(MemoryWorker):
    """A spout task between twins, with what a bolt would see and do."""

    def __init__(self, spout, settings, **parts):
        builder = TopologyBuilder("t")
        builder.set_spout("numbers", spout)
        builder.set_bolt("sink", Sink()).shuffle_grouping("numbers")
        super().__init__(builder.build(), spout, settings, **parts)
        self.inboxes.adopt(RUN, [SINK])
        self._steps = itertools.count()

    @property
    def presence(self):
        """Return the task's report about itself."""
        return self.spout_seats.present(range(1, 2)).get(1)

    def received(self):
        """Return (value, root, edge) of each tuple in the inbox; an untracked tuple has no root."""
        tuples = []
        for _, entry in list(self.inboxes._boxes[SINK].entries.values()):
            chunk = decode(entry.payload)
            values = chunk.values.column(0).to_pylist()
            roots = chunk.lineage.roots.tolist()
            edges = chunk.lineage.edges.tolist()
            tuples += (
                zip(values, roots, edges, strict=True)
                if roots
                else [(value, None, None) for value in values]
            )
        return tuples

    def waiting(self):
        """Count the tuples in the inbox."""
        return self.inboxes.figures([SINK])[SINK].tuples

    def ack(self, *tuples):
        roots, xors = zip(*sorted((root, edge) for _, root, edge in tuples), strict=True)
        updates = Updates(roots=np.array(roots, np.uint64), xors=np.array(xors, np.uint64))
        self.ledger.apply(Token(run="r", task=1, step=next(self._steps)), updates)


SETTINGS = SpoutSettings(
    message_timeout=timedelta(seconds=30),
    admission=Admission(bound=100, fixed=True),
    grace=timedelta(seconds=0),
)


@contextmanager
def running(spout, settings=SETTINGS, *, attended=True, **parts):
    bench = SpoutBench(spout, settings, **parts)
    if attended:
        bench.attend()
    with bench.working():
        yield bench


def received(bench, count):
    wait_until(lambda: len(bench.received()) >= count, 5, f"{count} tuples in the inbox")
    return bench.received()


def told(bench, *what):
    wait_until(
        lambda: what in bench.spout.told, 20, f"the spout to be told {what}, not {bench.spout.told}"
    )


def test_a_complete_tree_acks_its_message_once_on_the_thread_that_emitted():
    with running(ListSpout(2)) as bench:
        bench.ack(*received(bench, 2))
        told(bench, "ack", "message 0")
        told(bench, "ack", "message 1")
    assert sorted(what for what in bench.spout.told if what[0] == "ack") == [
        ("ack", "message 0"),
        ("ack", "message 1"),
    ]
    assert len(bench.spout.threads) == 1
    assert bench.metrics.totals()["numbers"][1]["acked"] == 2


def test_a_spout_of_many_tuples_is_never_asked_for_more_than_its_bound_has_room_for():
    settings = replace(SETTINGS, admission=Admission(bound=7, fixed=True))
    with running(ManySpout(10), settings) as bench:
        tuples = received(bench, 7)
        assert [value for value, _, _ in tuples] == list(range(7))
        bench.ack(*tuples[:3])
        told(bench, "ack all", ("message 0", "message 1", "message 2"))
        assert [value for value, _, _ in received(bench, 10)] == list(range(10))
    assert max(bench.spout.limits) == 7
    assert bench.metrics.totals()["numbers"][1]["emitted"] == 10


def test_who_derives_from_a_spout_of_many_tuples_may_work_one_by_one():
    with running(OneByOneSpout(2)) as bench:
        bench.ack(*received(bench, 2))
        told(bench, "ack", "message 0")
        told(bench, "ack", "message 1")
    assert bench.spout.limits == []


def test_a_failed_tree_fails_its_message_with_the_bolt_and_the_reason():
    with running(ListSpout(1)) as bench:
        [(_, root, _)] = received(bench, 1)
        bench.ledger.fail([Failure(root=root, component="sink", task=2, reason="ValueError: no")])
        told(bench, "fail", "message 0", "sink[2]: ValueError: no")
    assert bench.metrics.errors()[0].message == "sink[2]: ValueError: no"


def test_a_spout_that_wants_no_reason_is_given_none():
    with running(StormSpout(1)) as bench:
        [(_, root, _)] = received(bench, 1)
        bench.ledger.fail([Failure(root=root, component="sink", task=2, reason="no")])
        told(bench, "fail", "message 0")


def test_a_message_times_out_and_its_late_ack_is_counted():
    with running(
        ListSpout(1), replace(SETTINGS, message_timeout=timedelta(milliseconds=50))
    ) as bench:
        tuples = received(bench, 1)
        told(bench, "fail", "message 0", "timeout")
        assert bench.ledger.pending() == 0
        bench.ack(*tuples)
    counts = bench.metrics.totals()["numbers"][1]
    assert (counts["timeout"], counts["failed"], counts.get("acked", 0)) == (1, 1, 0)


def test_a_released_message_is_given_back_without_blame():
    with running(ListSpout(1)) as bench:
        [(_, root, _)] = received(bench, 1)
        bench.ledger.release([root])
        told(bench, "release", "message 0")


class LaterSpout(ListSpout):
    def retry_later(self, msg_id, seconds, reason, *, blame):
        self._note("later", msg_id, seconds, reason, blame)


@pytest.mark.parametrize("blame", [True, False])
def test_a_spout_is_told_when_a_bolt_wants_a_message_again(blame):
    with running(LaterSpout(1)) as bench:
        ((_, root, _),) = received(bench, 1)
        wanted = Failure(
            root=root, component="sink", task=2, reason="busy", retry_after_s=60.0, blame=blame
        )
        bench.ledger.fail([wanted])
        told(bench, "later", "message 0", 60.0, "sink[2]: busy", blame)
    counted = bench.metrics.totals()["numbers"][1]
    assert counted["failed" if blame else "released"] == 1
    assert counted.get("released" if blame else "failed", 0) == 0


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("RetryLater: again after 60 s: the API is busy", True),
        ("GivenBack: again after 2 s: more tuples wait for the rate limit than begin soon", False),
    ],
)
def test_a_message_that_a_bolt_postpones_is_shown_unless_tiercel_itself_did(reason, shown, caplog):
    caplog.set_level("INFO")
    with running(LaterSpout(1)) as bench:
        ((_, root, _),) = received(bench, 1)
        wanted = Failure(
            root=root, component="sink", task=2, reason=reason, retry_after_s=60.0, blame=False
        )
        bench.ledger.fail([wanted])
        told(bench, "later", "message 0", 60.0, f"sink[2]: {reason}", False)
    assert [each.message for each in bench.metrics.errors()] == [f"sink[2]: {reason}"] * shown
    records = [each for each in caplog.records if hasattr(each, "reason")]
    assert [each.event for each in records] == ["message_retried_later"] * shown


class NamingSpout(ListSpout):
    def describe(self, msg_id):
        return {"message_id": f"order-{msg_id}", "queue": "orders"}


class ForgetfulSpout(ListSpout):
    def describe(self, msg_id):
        raise KeyError(msg_id)


@pytest.mark.parametrize(
    ("spout", "about", "fields"),
    [
        (ListSpout, "message message 0", {"message_id": "message 0"}),
        (ForgetfulSpout, "message message 0", {"message_id": "message 0"}),
        (
            NamingSpout,
            "message order-message 0 of queue orders",
            {"message_id": "order-message 0", "queue": "orders"},
        ),
    ],
)
def test_a_failure_names_its_message_its_bolt_and_the_task(spout, about, fields, caplog):
    caplog.set_level("INFO")
    with running(spout(1)) as bench:
        [(_, root, _)] = received(bench, 1)
        bench.ledger.fail([Failure(root=root, component="sink", task=2, reason="ValueError: no")])
        told(bench, "fail", "message 0", "sink[2]: ValueError: no")
    [error] = bench.metrics.errors()
    assert error.about == about
    [record] = [each for each in caplog.records if getattr(each, "event", "") == "message_failed"]
    assert record.getMessage() == f"{about} failed: sink[2]: ValueError: no"
    said = vars(record)
    assert {name: said.get(name) for name in ("message_id", "queue")} == {"queue": None, **fields}
    assert (said["bolt"], said["task"], said["reason"]) == ("sink", 2, "sink[2]: ValueError: no")


def test_a_spout_that_knows_nothing_of_later_is_told_of_a_failure():
    with running(StormSpout(1)) as bench:
        ((_, root, _),) = received(bench, 1)
        wanted = Failure(root=root, component="sink", task=2, reason="busy", retry_after_s=60.0)
        bench.ledger.fail([wanted])
        told(bench, "fail", "message 0")


def test_a_spout_that_knows_no_release_is_told_of_a_failure():
    with running(StormSpout(1)) as bench:
        [(_, root, _)] = received(bench, 1)
        bench.ledger.release([root])
        told(bench, "fail", "message 0")


def test_a_ledger_that_lost_its_memory_gives_everything_back():
    with running(ListSpout(3)) as bench:
        received(bench, 3)
        bench.ledger.lose()
        for n in range(3):
            told(bench, "release", f"message {n}")


def test_no_more_than_the_bound_is_in_flight():
    with running(
        ListSpout(10), replace(SETTINGS, admission=Admission(bound=3, fixed=True))
    ) as bench:
        first = received(bench, 3)
        bench.ack(first[0])
        told(bench, "ack", "message 0")
        assert len(received(bench, 4)) == 4
    assert len(bench.spout.waiting) == 6


def test_nothing_is_emitted_while_no_driver_is_there():
    with running(ListSpout(1), attended=False) as bench:
        wait_until(
            lambda: bench.outbox.attendance is Attendance.NO_DRIVER,
            5,
            "the worker to look for a driver",
        )
        assert bench.spout.waiting == [0]
        bench.attend()
        received(bench, 1)


def test_without_tracking_a_message_is_acked_as_soon_as_it_is_on_its_way():
    with running(ListSpout(1), tracked=False) as bench:
        told(bench, "ack", "message 0")
        assert bench.received() == [(0, None, None)]
        assert bench.ledger.pending() == 0


def test_the_end_waits_for_what_finishes_in_time_and_gives_the_rest_back():
    with running(ListSpout(2), replace(SETTINGS, grace=timedelta(seconds=2))) as bench:
        tuples = received(bench, 2)
        bench.task.stop()
        bench.ack(tuples[0])
    assert bench.spout.told == [("ack", "message 0"), ("release", "message 1"), ("close",)]
    assert bench.ledger.pending() == 0


def test_a_root_id_that_is_taken_sends_its_batch_back_and_nothing_on():
    class Collides(MemoryLedger):
        def register(self, owner, roots, ack_vals):
            return list(roots[:1])

    with running(ListSpout(1), ledger=Collides(SPEC)) as bench:
        told(bench, "release", "message 0")
        assert bench.received() == []


class KeepingSpout(ListSpout):
    """Keeps the collector, as Storm's spouts may, and emits failed tuples from ``fail``."""

    def next_tuple(self, collector):
        self.collector = collector
        super().next_tuple(collector)

    def fail(self, msg_id):
        self._note("fail", msg_id)
        self.collector.emit([len(self.told) + 100], msg_id=f"{msg_id} again")

    def release(self, msg_id):
        Spout.release(self, msg_id)


def fail(bench, root):
    bench.ledger.fail([Failure(root=root, component="sink", task=2, reason="no")])


def test_what_a_spout_emits_when_it_is_told_of_a_failure_is_a_tuple_like_any_other():
    with running(KeepingSpout(1)) as bench:
        fail(bench, received(bench, 1)[0][1])
        told(bench, "fail", "message 0")
        _, again = received(bench, 2)
        assert again[0] == 101
        bench.ack(again)
        told(bench, "ack", "message 0 again")


class Returning(ListSpout):
    """Like QueueSpout, can at once emit again what is released."""

    def release(self, msg_id):
        super().release(msg_id)
        self.waiting.append(int(msg_id.split()[1]))


def test_what_is_released_and_emitted_again_at_once_is_a_tuple_like_any_other():
    with running(Returning(3)) as bench:
        first = received(bench, 3)
        bench.ledger.release([root for _, root, _ in first])
        again = received(bench, 6)[3:]
        assert sorted(value for value, _, _ in again) == [0, 1, 2]
        assert not {root for _, root, _ in first} & {root for _, root, _ in again}
        bench.ack(*again)
        for n in range(3):
            told(bench, "ack", f"message {n}")
    assert bench.metrics.totals()["numbers"][1]["released"] == 3


def test_a_batch_that_collides_again_and_again_is_tried_at_the_pace_of_batches():
    class Collides(MemoryLedger):
        tries = 0

        def registering(self, owner, roots, ack_vals):
            self.tries += 1
            return super().registering(owner, roots, ack_vals)

        def register(self, owner, roots, ack_vals):
            return list(roots[:1]) if self.tries < 5 else super().register(owner, roots, ack_vals)

    began = time.monotonic()
    with running(Returning(1), ledger=Collides(SPEC)) as bench:
        bench.ack(*received(bench, 1))
        told(bench, "ack", "message 0")
    assert bench.ledger.tries == 5
    assert time.monotonic() - began >= 4 * 0.01


def test_at_the_end_what_is_emitted_again_is_left_to_close():
    with running(Returning(3)) as bench:
        received(bench, 3)
    assert bench.spout.told == [*(("release", f"message {n}") for n in range(3)), ("close",)]
    assert sorted(bench.spout.waiting) == [0, 1, 2]


class LossyInboxes(MemoryInboxes):
    """Loses the replies to appends as long as Redis is ``away``."""

    away = True

    def append(self, run, sender, number, parcels):
        effects = super().append(run, sender, number, parcels)
        return [LocalEffect(lambda effect=effect: self._lossy(effect)) for effect in effects]

    def _lossy(self, effect):
        appended = effect.perform()
        if self.away:
            raise RedisUnavailableError("reply lost")
        return appended


@pytest.mark.parametrize("timeout", [timedelta(seconds=30), None])
def test_outcomes_that_come_while_their_batch_is_still_being_sent_are_not_lost(timeout):
    inboxes = LossyInboxes()
    ledger = MemoryLedger(replace(SPEC, message_timeout=timeout))
    settings = replace(SETTINGS, message_timeout=timeout)
    with running(ManySpout(4), settings, ledger=ledger, inboxes=inboxes) as bench:
        zero, one, two, three = received(bench, 4)
        bench.ack(zero, one)
        fail(bench, two[1])
        bench.ledger.release([three[1]])
        early = bench.task._trees._early
        kinds = [
            lambda: any(each.acked for each in early),
            lambda: any(each.failed for each in early),
        ]
        wait_until(
            lambda: all(kind() for kind in kinds) and any(each.released for each in early),
            5,
            "the outcomes",
        )
        assert bench.spout.told == []
        inboxes.away = False
        told(bench, "ack all", ("message 0", "message 1"))
        told(bench, "fail", "message 2", "sink[2]: no")
        told(bench, "release", "message 3")
    assert bench.metrics.totals()["numbers"][1].get("late_outcomes", 0) == 0
    assert len(bench.task._trees.pending) == 0


def test_what_is_done_when_the_worker_ends_is_acked_though_its_batch_was_never_sent():
    with running(ListSpout(2), inboxes=LossyInboxes()) as bench:
        bench.ack(received(bench, 2)[0])
        wait_until(lambda: bench.task._trees._early, 5, "the outcome to be there")
    assert bench.spout.told == [("ack", "message 0"), ("release", "message 1"), ("close",)]


def test_a_batch_that_is_still_being_sent_is_emitted_again_once_the_ledger_is_lost():
    inboxes = LossyInboxes()
    with running(Returning(1), inboxes=inboxes) as bench:
        received(bench, 1)
        bench.ledger.lose()
        told(bench, "release", "message 0")
        inboxes.away = False
        bench.ack(received(bench, 2)[1])
        told(bench, "ack", "message 0")
        assert bench.ledger.pending() == 0


class Endless(ManySpout):
    """Always has more tuples."""

    def next_tuples(self, collector, limit):
        collector.emit_all([[n] for n in range(limit)], [f"message {n}" for n in range(limit)])

    def ack_all(self, msg_ids):
        pass


class EndlessCareless(ListSpout):
    """Always has more tuples, each of a kilobyte and without a message id."""

    output_fields = "text string"

    def next_tuple(self, collector):
        collector.emit(["x" * 1_000])


@pytest.mark.parametrize("spout", [Endless, EndlessCareless])
def test_what_is_not_tracked_is_bounded_by_the_inboxes(spout):
    inboxes = MemoryInboxes(Bounds(tuples=8_000, bytes=3_000_000))
    with running(spout(0), tracked=spout is EndlessCareless, inboxes=inboxes) as bench:
        received(bench, 1)
        wait_until(lambda: bench.outbox.held and bench.waiting() > 100, 5, "the inbox to be full")
        time.sleep(0.3)  # time for many batches
        figures = inboxes.figures([SINK])[SINK]
        assert figures.tuples <= 8_000
        assert figures.bytes <= 3_000_000
        [(task, entries)] = inboxes.drain(RUN)
        inboxes.discard(RUN, task, [entry.position for entry in entries])
        wait_until(lambda: bench.waiting() > 0, 5, "the spout to go on")


def test_what_was_sent_to_a_run_that_is_over_is_emitted_again_to_the_next(caplog):
    with running(Returning(1)) as bench:
        bench.ack(*received(bench, 1))
        told(bench, "ack", "message 0")
        bench.inboxes.adopt("2-run", [SINK])
        bench.spout.waiting.append(1)
        told(bench, "release", "message 1")
        assert [value for value, _, _ in bench.received()] == [0], "it was refused"
        bench.attend("2-run")
        bench.ack(received(bench, 2)[1])
        told(bench, "ack", "message 1")
        assert bench.ledger.pending() == 0


def test_nothing_is_sent_to_a_driver_that_has_no_run_yet():
    with running(ListSpout(1), attended=False) as bench:
        bench.attend("")
        wait_until(
            lambda: bench.outbox.attendance is Attendance.NO_DRIVER,
            5,
            "the worker to look for a driver",
        )
        assert bench.spout.waiting == [0]
        bench.attend()
        received(bench, 1)


def test_the_spout_is_told_what_to_expect_as_the_bound_changes():
    admission = Admission(bound=2)
    with running(ListSpout(30), replace(SETTINGS, admission=admission)) as bench:
        wait_until(lambda: 2 in bench.spout.expected, 5, "the first bound")
        bench.ack(*received(bench, 2))
        wait_until(lambda: bench.spout.expected[-1] > 2, 5, "the next bound")
        grown = bench.spout.expected[-1]
        bench.control.order(State.DEACTIVATED)
        wait_until(
            lambda: bench.spout.expected[-1] == 0, 10, "the spout to be told to give all back"
        )
        bench.control.order(State.ACTIVE)
        wait_until(lambda: bench.spout.expected[-1] == grown, 10, "the bound again")
    assert len(bench.spout.threads) == 1


def test_nothing_is_expected_before_a_driver_is_there():
    with running(ListSpout(1), attended=False) as bench:
        wait_until(lambda: "activate" in bench.spout.switched, 5, "the spout to be activated")
        bench.attend()
        received(bench, 1)
    assert bench.spout.expected == [0, 100]


def test_nothing_is_held_for_long_without_a_driver():
    patience = Patience(without_driver=timedelta(seconds=0.5))
    with running(ListSpout(1), replace(SETTINGS, patience=patience)) as bench:
        wait_until(lambda: bench.spout.expected[-1:] == [100], 5, "the bound")
        bench.leave()
        wait_until(
            lambda: bench.spout.expected[-1] == 0, 5, "the spout to be told to give all back"
        )
        bench.attend()
        wait_until(lambda: bench.spout.expected[-1] == 100, 5, "the bound again")
        received(bench, 1)


def test_what_times_out_while_no_driver_is_there_is_given_back_without_blame():
    with running(ListSpout(1), replace(SETTINGS, message_timeout=timedelta(seconds=3))) as bench:
        received(bench, 1)
        bench.leave()
        told(bench, "release", "message 0")
        wait_until(lambda: bench.ledger.pending() == 0, 5, "the root to be forgotten")
    assert not [what for what in bench.spout.told if what[0] == "fail"]


def test_no_message_times_out_while_the_processes_of_its_run_are_starting():
    settings = replace(SETTINGS, message_timeout=timedelta(seconds=2))
    with running(ListSpout(1), settings, attended=False) as bench:
        bench.attend(starting=True)
        received(bench, 1)
        ended_at = time.monotonic() + 4.0
        wait_until(lambda: time.monotonic() > ended_at, 10, "twice the timeout to pass")
        assert bench.spout.told == []
        bench.attend()
        told(bench, "fail", "message 0", "timeout")
    assert time.monotonic() - ended_at >= 2.0


def test_a_driver_that_leaves_while_its_run_is_starting_holds_no_message():
    settings = replace(SETTINGS, message_timeout=timedelta(seconds=2))
    with running(ListSpout(1), settings, attended=False) as bench:
        bench.attend(starting=True)
        received(bench, 1)
        bench.leave()
        told(bench, "release", "message 0")


class LeaseAway(Lease):
    """Cannot be read while ``away``."""

    away = False

    def holder(self):
        if self.away:
            raise RedisUnavailableError("away")
        return super().holder()


def test_timeouts_begin_anew_when_redis_is_back():
    """No bolt could commit while Redis was away, so the time says nothing about the message."""
    settings = replace(SETTINGS, message_timeout=timedelta(seconds=4))
    lease = LeaseAway(MemoryPresences(lambda: 0.0))
    with running(ListSpout(1), settings, lease=lease) as bench:
        received(bench, 1)
        lease.away = True
        away_at = time.monotonic()
        wait_until(lambda: bench.outbox.attendance is Attendance.REDIS_AWAY, 5, "an outage")
        wait_until(lambda: time.monotonic() > away_at + 2.0, 5, "half of the timeout to pass")
        lease.away = False
        back_at = time.monotonic()
        told(bench, "fail", "message 0", "timeout")
    assert time.monotonic() - back_at >= 4.0


class Away(MemoryInboxes):
    """Takes nothing while ``away``."""

    away = False
    tries = 0

    def append(self, run, sender, number, parcels):
        effects = super().append(run, sender, number, parcels)
        return [LocalEffect(lambda effect=effect: self._taken(effect)) for effect in effects]

    def _taken(self, effect):
        if self.away:
            self.tries += 1
            raise RedisUnavailableError("away")
        return effect.perform()


def test_what_is_emitted_again_while_redis_is_away_belongs_to_the_next_batch():
    inboxes = Away()
    spout = KeepingSpout(1)
    with running(spout, inboxes=inboxes) as bench:
        [(_, root, _)] = received(bench, 1)
        inboxes.away = True
        spout.waiting.append(1)
        wait_until(lambda: inboxes.tries, 5, "a batch to be held")
        fail(bench, root)
        told(bench, "fail", "message 0")
        inboxes.away = False
        _, held, again = received(bench, 3)
        assert (held[0], again[0]) == (1, 101)
        bench.ack(again)
        told(bench, "ack", "message 0 again")
        bench.ack(held)
        told(bench, "ack", "message 1")
    assert bench.metrics.totals()["numbers"][1]["emitted"] == 3


def test_the_end_comes_also_for_a_spout_that_emits_again_whatever_it_is_given_back():
    inboxes = Away()
    with running(KeepingSpout(3), inboxes=inboxes) as bench:
        received(bench, 3)
        inboxes.away = True
        bench.spout.waiting = [5]
        wait_until(lambda: inboxes.tries, 5, "a batch to be held")
    given_back = sorted(what[1] for what in bench.spout.told if what[0] == "fail")
    assert given_back == ["message 0", "message 1", "message 2", "message 5"]
    assert bench.spout.told[-1] == ("close",)
    assert bench.ledger.pending() == 1, (
        "the batch that was registered and never sent expires by itself"
    )


def test_a_spout_that_raises_ends_the_worker_with_its_error():
    class Broken(ListSpout):
        def next_tuple(self, collector):
            raise RuntimeError("the source is gone")

    bench = SpoutBench(Broken(1), SETTINGS)
    bench.attend()
    with pytest.raises(RuntimeError, match="the source is gone"):
        bench.task.run({}, bench.context)
    assert bench.spout.told == [("close",)]


def test_without_timeouts_a_message_waits_for_its_outcome_however_long():
    with running(ListSpout(1), replace(SETTINGS, message_timeout=None)) as patient:
        tuples = received(patient, 1)
        with running(
            ListSpout(1), replace(SETTINGS, message_timeout=timedelta(milliseconds=50))
        ) as bench:
            told(bench, "fail", "message 0", "timeout")
        assert patient.spout.told == []
        patient.ack(*tuples)
        told(patient, "ack", "message 0")


def test_a_message_whose_timeout_is_reset_outlives_one_whose_timeout_is_not():
    with running(ListSpout(2), replace(SETTINGS, message_timeout=timedelta(seconds=2))) as bench:
        long, _ = received(bench, 2)

        def other_timed_out():
            bench.ledger.reset_timeout([long[1]])
            return ("fail", "message 1", "timeout") in bench.spout.told

        wait_until(other_timed_out, 10, "the other message to time out")
        bench.ack(long)
        told(bench, "ack", "message 0")


def test_what_waits_for_a_limit_leaves_room_for_others_and_its_timeout_is_reset():
    settings = replace(
        SETTINGS,
        admission=Admission(bound=2, fixed=True),
        message_timeout=timedelta(seconds=4),
    )
    with running(ListSpout(5), settings) as bench:
        waits = received(bench, 2)
        bench.ledger.reset_timeout([root for _, root, _ in waits], waiting=True)
        others = received(bench, 4)[2:]
        wait_until(lambda: 4 in bench.spout.expected, 10, "messages beside those that wait")
        assert bench.spout.waiting == [4], "no more of them than the bound"
        bench.ack(waits[0])
        told(bench, "ack", "message 0")
        assert bench.spout.waiting == [4], "what waited made no room"
        bench.ack(*others)
        told(bench, "ack", "message 3")
        told(bench, "fail", "message 1", "timeout")


def test_the_bound_grows_while_trees_wait_for_a_limit():
    settings = replace(SETTINGS, admission=Admission.for_topology(None, timedelta(seconds=30)))
    with running(ListSpout(200), settings) as bench:
        waiting: set[int] = set()

        def all_emitted() -> bool:
            waiting.update(root for _, root, _ in bench.received())
            bench.ledger.reset_timeout(sorted(waiting), waiting=True)
            return len(waiting) == 200

        wait_until(all_emitted, 10, "all messages, none of which is acked")
        assert settings.admission.bound > 16


def test_a_tuple_without_a_message_id_is_sent_and_nobody_is_told():
    class Careless(ListSpout):
        def next_tuple(self, collector):
            if self.waiting:
                collector.emit([self.waiting.pop(0)])

    with running(Careless(2), replace(SETTINGS, admission=Admission(bound=1, fixed=True))) as bench:
        assert received(bench, 2) == [(0, None, None), (1, None, None)], (
            "and the bound does not count it"
        )
        assert bench.ledger.pending() == 0
        bench.control.order(State.DEACTIVATED)
        wait_until(
            lambda: bench.presence == Presence(active=False, pending=0),
            10,
            "the spout to be deactivated",
        )
    assert bench.spout.told == [("close",)]


def test_a_deactivated_spout_emits_nothing_and_still_hears_of_everything():
    with running(ListSpout(3), replace(SETTINGS, message_timeout=timedelta(seconds=3))) as bench:
        first, second, _ = received(bench, 3)
        bench.control.order(State.DEACTIVATED)
        wait_until(
            lambda: bench.spout.switched == ["activate", "deactivate"],
            10,
            "the spout to be deactivated",
        )
        bench.spout.waiting.append(3)
        bench.ack(first)
        told(bench, "ack", "message 0")
        bench.ledger.fail([Failure(root=second[1], component="sink", task=2, reason="no")])
        told(bench, "fail", "message 1", "sink[2]: no")
        told(bench, "fail", "message 2", "timeout")
        wait_until(
            lambda: bench.presence == Presence(active=False, pending=0),
            10,
            "the task to say that nothing is in flight",
        )
        assert bench.spout.waiting == [3]
        assert bench.spout.switched == ["activate", "deactivate"]

        bench.control.order(State.ACTIVE)
        received(bench, 4)
        assert bench.spout.switched == ["activate", "deactivate", "activate"]
    assert bench.spout.switched == ["activate", "deactivate", "activate", "deactivate"]


def test_a_spout_that_is_deactivated_or_cut_off_is_silent_so_that_windows_wait_for_it():
    with running(ListSpout(0)) as bench:
        wait_until(lambda: bench.spout.switched == ["activate"], 10, "the spout to be activated")
        bench.control.silent.clear()
        bench.spout.is_full = lambda: True
        wait_until(lambda: bench.control.silent == {"numbers"}, 10, "the note that it is cut off")
        bench.spout.is_full = lambda: False
        bench.control.order(State.DEACTIVATED)
        wait_until(lambda: bench.spout.switched[-1] == "deactivate", 10, "the order")
        bench.control.silent.clear()
        wait_until(lambda: bench.control.silent == {"numbers"}, 10, "the note that it is silent")


def test_a_worker_that_starts_while_deactivated_starts_deactivated():
    control = MemoryControl()
    control.order(State.DEACTIVATED)
    with running(ListSpout(1), control=control) as bench:
        wait_until(lambda: bench.presence, 10, "the task to be there")
        assert bench.spout.switched == []
        control.order(State.ACTIVE)
        received(bench, 1)
    assert bench.spout.switched == ["activate", "deactivate"]


def test_while_redis_is_away_the_state_is_what_it_was_last():
    control = MemoryControl()
    bench = SpoutBench(ListSpout(1), SETTINGS, control=control)
    orders = bench.orders
    spout = bench.spout
    never = pytest.fail
    control.ask, ask = unavailable, control.ask
    orders.obey(spout, 0, never)
    assert not orders.active, "nothing is known yet"
    control.ask = ask
    orders.obey(spout, 0, never)
    assert orders.active
    control.ask = unavailable
    control.order(State.DEACTIVATED)
    orders.obey(spout, 0, never)
    assert orders.active
    control.ask = ask
    orders.obey(spout, 0, never)
    control.lose()
    orders.obey(spout, 0, never)
    assert not orders.active
    assert control.state() is State.DEACTIVATED, "an emptied Redis learns it"


def unavailable(*_):
    raise RedisUnavailableError("Redis is away")


def test_a_killed_worker_ends_by_itself_and_gives_back_what_is_in_flight():
    with running(ListSpout(1)) as bench:
        received(bench, 1)
        bench.control.order(State.KILLED)
        told(bench, "close")
    assert bench.spout.told == [("release", "message 0"), ("close",)]
    assert bench.ledger.pending() == 0


def test_a_worker_that_starts_while_its_topology_is_being_killed_ends_at_once():
    control = MemoryControl()
    control.order(State.KILLED)
    with running(ListSpout(1), control=control) as bench:
        told(bench, "close")
    assert bench.received() == []
    assert bench.spout.switched == []
