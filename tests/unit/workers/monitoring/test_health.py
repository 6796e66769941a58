"""The badge of a topology, and where it hurts."""

from dataclasses import replace

import pytest

from tests.support.overviews import bolt_counts, edge, overview
from tiercel.acker.inbox.contract import InboxFigures
from tiercel.acker.metrics.contract import Counted
from tiercel.queues.broker.depths import QueueDepth
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Presence
from tiercel.workers.monitoring.health import Grade, health_of

EDGES = (edge("lines", "split"),)
PRESENT = {1: Presence(active=True, pending=0)}


def inbox(**changed):
    given = {"tuples": 0, "bytes": 0, "oldest_s": 0.0, "attempts": 1, "seen_s": 0.4}
    return InboxFigures(**{**given, "adopted": True, **changed})


def running(**changed):
    given = {"present": PRESENT, "driver": True, "inboxes": {2: inbox()}}
    return overview(*EDGES, **{**given, **changed})


def test_one_that_works_is_well():
    health = health_of(running(rates={"split": {2: bolt_counts(executed=9_000, busy=0.3)}}))
    assert (health.grade, health.badge, health.hurts) == (Grade.WELL, "well", ())


def test_the_bottleneck_is_named_with_what_waits_for_it():
    seen = running(
        rates={"split": {2: bolt_counts(executed=9_000, busy=0.97)}},
        inboxes={2: inbox(tuples=1005, oldest_s=13.0)},
    )
    health = health_of(seen)
    assert health.grade is Grade.STRAINED
    [hurt] = health.hurts
    assert hurt.component == "split"
    assert "bottleneck" in hurt.says
    assert "its task works 97% of the time" in hurt.says
    assert "1,005 tuples wait for it, the oldest for 13.0 s" in hurt.says


def test_a_bolt_whose_tuples_wait_for_a_retry_is_not_behind():
    held = running(inboxes={2: inbox(tuples=3, retrying=3, oldest_s=300.0)})
    assert health_of(held).grade is Grade.WELL
    [row] = held.bolts
    assert (row.waiting, row.retrying) == (3, 3)
    behind = running(inboxes={2: inbox(tuples=4, retrying=3, oldest_s=300.0)})
    assert "is behind" in health_of(behind).hurts[0].says


def waiting(ready, busy=0.02):
    """A bolt that executes 30 tuples per second, in which each is for 567 ms, works for 0.4 ms."""
    counts = {"executed": 9_000, "acked": 9_000, "execute_ns": 3_600_000_000}
    seen = running(
        counted=Counted(
            counts={"split": {2: counts | {"process_ns": 9_000 * 567_000_000}}}, seconds=300
        ),
        rates={
            "lines": {1: {"acked": 30_000}},
            "split": {2: bolt_counts(executed=30_000, busy=busy)},
        },
    )
    queue = QueueDepth(name="q", ready=ready, unacked=0, consumers=1, dead_lettered=0)
    return health_of(replace(seen, queues=(queue,)))


def test_a_bottleneck_that_waits_for_others_is_named_although_it_is_idle():
    health = waiting(ready=4_809)
    assert health.grade is Grade.STRAINED
    [hurt] = health.hurts
    assert hurt.component == "split"
    assert hurt.says == (
        "is the bottleneck: a tuple spends 567 ms in it, but only 0.4 ms working; "
        "4,809 messages wait in the broker"
    )


def test_what_waits_in_the_broker_for_a_moment_is_no_backlog():
    assert waiting(ready=299).grade is Grade.WELL


def test_a_busy_bolt_is_the_only_bottleneck():
    [hurt] = waiting(ready=4_809, busy=0.97).hurts
    assert "works 97% of the time" in hurt.says


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"driver": False}, "there is no driver"),
        (
            {"trouble": "executor 1 on h cannot start Python 'p': No such file or directory"},
            "no executor can run bolts: executor 1 on h cannot start Python 'p'",
        ),
        ({"inboxes": {}}, "has no process for task 2"),
        (
            {
                "present": {1: Presence(active=True, pending=1, oldest_s=45)},
                "message_timeout_s": 30.0,
            },
            "in flight for 45.0 s, and times out after 30.0 s",
        ),
    ],
)
def test_what_keeps_it_from_its_work_is_trouble(changed, says):
    health = health_of(running(**changed))
    assert (health.grade, health.badge) == (Grade.ILL, "in trouble")
    assert any(says in hurt.says for hurt in health.hurts)
    assert health.hurts[0].grade is Grade.ILL, "the worst first"


def test_a_spout_without_a_worker_is_trouble():
    seen = overview(*EDGES, spouts=("lines", "more"), present={}, driver=True, inboxes={2: inbox()})
    health = health_of(seen)
    assert [hurt.component for hurt in health.hurts] == ["lines", "more"]
    assert health.hurts[0].says == "has no worker for 1 of 1 task"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rates": {"split": {2: {"failed": 2100}}}}, "fails 2.1 tuples per second"),
        ({"inboxes": {2: inbox(doing_s=45.0)}}, "has been in one call for 45.0 s in task 2"),
        ({"inboxes": {2: inbox(tuples=7, oldest_s=3.0)}}, "is behind; 7 tuples wait for it"),
        ({"inboxes": {2: inbox(tuples=1, oldest_s=3.0)}}, "is behind; 1 tuple waits for it"),
    ],
)
def test_what_wants_to_be_looked_at_strains_it(changed, says):
    health = health_of(running(**changed))
    assert health.grade is Grade.STRAINED
    [hurt] = health.hurts
    assert (hurt.component, says in hurt.says) == ("split", True)


def test_dead_letters_are_named_also_where_nothing_runs():
    queue = QueueDepth(name="orders", ready=0, unacked=0, consumers=1, dead_lettered=5)
    health = health_of(replace(overview(*EDGES), queues=(queue,)))
    assert (health.grade, health.badge) == (Grade.RESTING, "not running")
    assert [hurt.says for hurt in health.hurts] == ["5 dead letters of queue orders"]


def test_a_deactivated_one_rests():
    health = health_of(running(state=State.DEACTIVATED))
    assert (health.grade, health.badge) == (Grade.RESTING, "deactivated")
