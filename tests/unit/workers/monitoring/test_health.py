"""The health of a topology: its badge, and each kind of finding."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.overviews import bolt_counts, edge, health_of, overview
from tiercel.acker.ids import line_of
from tiercel.acker.inbox.contract import InboxFigures, OpenWindows
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import Counted, ErrorReport
from tiercel.queues.broker.depths import QueueDepth
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Presence
from tiercel.workers.control.registry import Component, Edge, Graph
from tiercel.workers.monitoring.findings import OF_SERVERS, FindingKind, Grade, ServerProblems
from tiercel.workers.monitoring.health import HealthMemory

EDGES = (edge("lines", "split"),)
PRESENT = {1: Presence(active=True, pending=0)}
NOW = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)


def inbox(**changed):
    given = {"tuples": 0, "bytes": 0, "oldest_s": 0.0, "attempts": 1, "seen_s": 0.4}
    return InboxFigures(**{**given, "adopted": True, **changed})


def running(**changed):
    given = {"present": PRESENT, "driver": True, "inboxes": {2: inbox()}}
    return overview(*EDGES, **{**given, **changed})


def slots(*counts):
    """Return slots of half a minute with these counts by component, the current slot first."""
    tasks = {"lines": 1, "split": 2}
    return [
        Counted(counts={name: {tasks[name]: of} for name, of in slot.items()}, seconds=30)
        for slot in counts
    ]


def kinds(health):
    return [finding.kind.value for finding in health.findings]


def test_one_that_works_is_well():
    health = health_of(running(rates={"split": {2: bolt_counts(executed=9_000, busy=0.3)}}))
    assert (health.grade, health.badge, health.findings) == (Grade.WELL, "well", ())


def test_the_bottleneck_is_named_with_what_waits_for_it():
    seen = running(
        rates={"split": {2: bolt_counts(executed=9_000, busy=0.97)}},
        inboxes={2: inbox(tuples=1005, oldest_s=13.0)},
    )
    health = health_of(seen)
    assert health.grade is Grade.STRAINED
    [finding] = health.findings
    assert finding.component == "split"
    assert "bottleneck" in finding.reason
    assert "its task works 97% of the time" in finding.reason
    assert "1,005 tuples wait for it, the oldest for 13.0 s" in finding.reason


def shared(inboxes, *, busy=(), tasks=(2, 3, 4, 5), at_once=1, grouping="shuffle", **changed):
    """A bolt with several tasks, which take their tuples from a line if it is shuffled."""
    work = Component(name="split", tasks=tasks, at_once=at_once)
    lines = Component(name="lines", tasks=(1,), queue="q")
    edges = (Edge(source="lines", stream="default", target="split", grouping=grouping),)
    graph = Graph(spouts=(lines,), bolts=(work,), edges=edges, shards=1)
    rates = {
        task: bolt_counts(executed=1, busy=share) for task, share in zip(tasks, busy, strict=False)
    }
    given = {"graph": graph, "rates": {"split": rates}, **changed}
    return running(inboxes=dict.fromkeys(tasks, inbox()) | inboxes, **given)


def test_a_long_tuple_is_no_bottleneck_while_other_tasks_are_free():
    executing = inbox(tuples=1, oldest_s=9.0, doing_s=8.0)
    seen = shared({2: executing}, busy=(1.0, 0, 0, 0))
    assert health_of(seen).grade is Grade.WELL
    [bolt] = seen.bolts
    assert (bolt.waiting, bolt.queued, bolt.busy) == (1, (0, 0.0), 0.25)
    waits = {line_of((2, 3, 4, 5)): inbox(tuples=3, oldest_s=2.5)}
    busy = health_of(shared({2: executing} | waits, busy=(1.0, 0.9, 0.9, 0.8))).findings
    assert busy[0].reason == (
        "is the bottleneck: its 4 tasks work 90% of the time; 3 tuples wait for it, the oldest for "
        "2.5 s"
    )
    behind = health_of(shared({2: executing} | waits, busy=(1.0, 0, 0, 0))).findings
    assert behind[0].reason == "is behind; 3 tuples wait for it, the oldest for 2.5 s"


def test_with_fields_a_busy_task_is_a_bottleneck_though_others_are_free():
    slow = inbox(tuples=4, oldest_s=9.0, doing_s=8.0)
    [found] = health_of(shared({2: slow}, busy=(1.0, 0, 0, 0), grouping="fields")).findings
    assert "the busiest of its 4 tasks works 100% of the time; 3 tuples wait" in found.reason


def test_one_task_with_one_long_tuple_is_a_bottleneck_once_others_wait():
    executing = {2: inbox(tuples=1, oldest_s=9.0, doing_s=8.0)}
    assert health_of(shared(executing, busy=(1.0,), tasks=(2,))).grade is Grade.WELL
    more = {2: inbox(tuples=2, oldest_s=9.0, doing_s=8.0)}
    [found] = health_of(shared(more, busy=(1.0,), tasks=(2,))).findings
    assert found.reason.endswith("; 1 tuple waits for it, the oldest for 9.0 s")


def test_a_long_call_is_told_if_it_is_longer_than_usual():
    counts = {"split": {2: {"executed": 10, "execute_ns": 200_000_000_000}}}
    slow = Counted(counts=counts, seconds=600)
    call = {2: inbox(tuples=1, doing_s=45.0)}
    assert kinds(health_of(running(inboxes=call))) == ["long_call"]
    assert health_of(running(inboxes=call, counted=slow)).grade is Grade.WELL
    longer = {2: inbox(tuples=1, doing_s=61.0)}
    assert kinds(health_of(running(inboxes=longer, counted=slow))) == ["long_call"]


def test_a_call_among_many_that_wait_is_measured_by_how_long_the_others_took():
    """They share the time of their task, so each has little of it."""
    counts = {"split": {2: {"executed": 100, "execute_ns": 10**9}}}
    call = {2: inbox(tuples=100, doing_s=19.0)}
    hasty = Counted(counts=counts, seconds=600)
    assert kinds(health_of(shared(call, tasks=(2,), at_once=100, counted=hasty))) == ["long_call"]
    counts["split"][2] |= {"acked": 100, "process_ns": 2_000 * 10**9}
    assert health_of(shared(call, tasks=(2,), at_once=100, counted=hasty)).grade is Grade.WELL


def test_a_first_call_may_take_half_of_the_message_timeout():
    first = Counted(counts={"split": {2: {"executed": 0}}}, seconds=600)
    for doing_s, told in ((14.0, []), (16.0, ["long_call"])):
        call = {2: inbox(tuples=1, doing_s=doing_s)}
        found = running(inboxes=call, counted=first, in_flight_limit_s=30.0)
        assert kinds(health_of(found)) == told


def test_calls_that_wait_at_once_are_not_behind():
    calls = {2: inbox(tuples=100, oldest_s=20.0)}
    assert health_of(shared(calls, tasks=(2,), at_once=100)).grade is Grade.WELL
    more = {2: inbox(tuples=104, oldest_s=20.0)}
    [found] = health_of(shared(more, tasks=(2,), at_once=100)).findings
    assert "is behind; 4 tuples wait" in found.reason


def test_a_bolt_whose_tuples_wait_for_a_retry_is_not_behind():
    held = running(inboxes={2: inbox(tuples=3, retrying=3, oldest_s=300.0)})
    assert health_of(held).grade is Grade.WELL
    [row] = held.bolts
    assert (row.waiting, row.retrying) == (3, 3)
    behind = running(inboxes={2: inbox(tuples=4, retrying=3, oldest_s=300.0)})
    assert "is behind" in health_of(behind).findings[0].reason


def test_a_bolt_whose_windows_hold_tuples_is_not_behind_for_their_age():
    holding = inbox(tuples=45, oldest_s=300.0, windows=OpenWindows(number=80, tuples=1_900))
    seen = running(inboxes={2: holding})
    assert health_of(seen).grade is Grade.WELL
    assert (seen.own.oldest_waiting_s, seen.windows[0].oldest_s) == (0, 300)
    hot = running(
        inboxes={2: holding}, rates={"split": {2: bolt_counts(executed=9_000, busy=0.97)}}
    )
    assert health_of(hot).findings[0].reason.endswith("; 45 tuples wait for it")
    closed = replace(holding, windows=OpenWindows(number=0, tuples=0))
    assert "is behind" in health_of(running(inboxes={2: closed})).findings[0].reason


def waiting(ready, busy=0.02):
    """Return a bolt that executes 30 tuples per second: each spends 567 ms in it, of which 0.4 ms
    are work.
    """
    counts = {"executed": 9_000, "acked": 9_000, "execute_ns": 3_600_000_000}
    lines = {"emitted": 9_000, "acked": 9_000}
    seen = running(
        slots=slots({"lines": lines, "split": counts | {"process_ns": 9_000 * 567_000_000}}),
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
    [finding] = health.findings
    assert finding.component == "split"
    assert finding.reason == (
        "is the bottleneck: a tuple spends 567 ms in it, but only 0.4 ms working; "
        "4,809 messages wait in the broker"
    )


def test_what_waits_in_the_broker_for_a_moment_is_no_backlog():
    assert waiting(ready=299).grade is Grade.WELL


def test_a_busy_bolt_is_the_only_bottleneck():
    [finding] = waiting(ready=4_809, busy=0.97).findings
    assert "works 97% of the time" in finding.reason


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
                "in_flight_limit_s": 30.0,
            },
            "in flight for 45.0 s; it times out after 30.0 s, unless a bolt that waits resets",
        ),
    ],
)
def test_what_keeps_it_from_its_work_is_trouble(changed, says):
    health = health_of(running(**changed))
    assert (health.grade, health.badge) == (Grade.ILL, "in trouble")
    assert any(says in finding.reason for finding in health.findings)
    assert health.findings[0].level is Grade.ILL, "the worst first"


def test_a_spout_without_a_worker_is_trouble():
    seen = overview(*EDGES, spouts=("lines", "more"), present={}, driver=True, inboxes={2: inbox()})
    health = health_of(seen)
    assert [finding.component for finding in health.findings] == ["lines", "more"]
    assert health.findings[0].reason == "has no worker for 1 of 1 task"


@pytest.mark.parametrize(
    ("queue", "missing"), [("q", []), (None, ["has no worker for 7 of 8 tasks"])]
)
def test_one_worker_is_enough_for_a_queue_and_its_other_tasks_wait_for_more(queue, missing):
    """The compose file has eight tasks for one worker; a spout of one's own needs one for each."""
    lines = Component(name="lines", tasks=tuple(range(1, 9)), queue=queue)
    seen = overview(
        graph=Graph(spouts=(lines,), bolts=(), edges=(), shards=1), present=PRESENT, driver=True
    )
    assert [finding.reason for finding in health_of(seen).findings] == missing


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"slots": slots({"split": {"failed": 63}})}, "fails 2.1 tuples per second"),
        ({"slots": slots({"split": {"failed": 1}})}, "fails 1 tuple in 30 s"),
        ({"inboxes": {2: inbox(doing_s=45.0)}}, "has been in one call for 45.0 s in task 2"),
        ({"inboxes": {2: inbox(tuples=7, oldest_s=3.0)}}, "is behind; 7 tuples wait for it"),
        ({"inboxes": {2: inbox(tuples=1, oldest_s=3.0)}}, "is behind; 1 tuple waits for it"),
    ],
)
def test_what_wants_to_be_looked_at_strains_it(changed, says):
    health = health_of(running(**changed))
    assert health.grade is Grade.STRAINED
    [finding] = health.findings
    assert (finding.component, says in finding.reason) == ("split", True)


def test_dead_letters_are_named_also_where_nothing_runs():
    queue = QueueDepth(name="orders", ready=0, unacked=0, consumers=1, dead_lettered=5)
    health = health_of(replace(overview(*EDGES, killed=True), queues=(queue,)))
    assert (health.grade, health.badge) == (Grade.RESTING, "not running")
    assert [finding.reason for finding in health.findings] == ["5 dead letters of queue orders"]


def test_a_deactivated_one_rests():
    health = health_of(running(state=State.DEACTIVATED))
    assert (health.grade, health.badge) == (Grade.RESTING, "deactivated")


def test_one_that_is_ordered_to_run_and_does_not_is_in_trouble():
    health = health_of(overview(*EDGES))
    assert (health.grade, health.badge, kinds(health)) == (
        Grade.ILL,
        "in trouble",
        ["nothing_runs"],
    )
    assert "tiercel kill t" in health.findings[0].reason


@pytest.mark.parametrize("changed", [{"killed": True}, {"state": State.DEACTIVATED}])
def test_one_that_was_ended_by_order_is_not_in_trouble(changed):
    health = health_of(overview(*EDGES, **changed))
    assert (health.grade, health.badge, kinds(health)) == (Grade.RESTING, "not running", [])


def test_while_a_server_is_away_old_figures_are_not_judged():
    seen = running(slots=slots({"split": {"failed": 5}}), present={}, inboxes={})
    problems = ServerProblems(redis="Redis does not answer", rabbitmq="RabbitMQ is away")
    health = health_of(seen, problems)
    assert (health.badge, kinds(health)) == ("in trouble", ["redis_away", "rabbitmq_away"])
    assert {finding.kind for finding in health.findings} <= OF_SERVERS
    unreadable = ServerProblems(redis="cannot read the data", unreadable=True)
    assert kinds(health_of(None, unreadable)) == ["unreadable"]
    assert kinds(health_of(running(), ServerProblems(full="Redis is full")))[0] == "redis_full"


QUEUE = QueueDepth(name="orders", ready=2_182, unacked=16, consumers=1, dead_lettered=0)


def outage(**changed):
    given = {"slots": slots({"lines": {"emitted": 40, "failed": 40}, "split": {"failed": 40}})}
    return replace(running(at=NOW, **{**given, **changed}), queues=(QUEUE,))


def failures(*messages, reason="split[2]: RuntimeError: 503", ago_s=2):
    """Return a spout's reports of the failures of these messages, two seconds apart."""
    return [
        ErrorReport(
            at=NOW - timedelta(seconds=ago_s + 2 * number), component="lines", task=1,
            message=reason, about=f"message {message} of queue orders",
        )
        for number, message in enumerate(messages)
    ]  # fmt: skip


def test_a_total_outage_is_trouble_with_its_reason():
    health = health_of(outage(errors=failures("a", "b", "c", "d", "e")))
    assert health.badge == "in trouble"
    assert kinds(health) == ["all_fail", "failing"]
    assert health.findings[0].reason == (
        "all messages fail: 40 failures of at least 5 messages and not one ack in the last 30 s, "
        "last: RuntimeError: 503"
    )


def test_an_outage_began_with_its_first_failure_although_nothing_came_for_minutes_before():
    quiet = slots({"lines": {"emitted": 40, "failed": 40}, "split": {"failed": 40}}, *[{}] * 19)
    seen = outage(slots=quiet, errors=failures("a", "b", "c", "d", "e"))
    [found] = [
        each
        for each in HealthMemory().judge(seen, ServerProblems(), NOW).findings
        if each.kind is FindingKind.ALL_FAIL
    ]
    assert found.since == NOW - timedelta(seconds=10)


@pytest.mark.parametrize("ago_slots", [0, 5])
def test_a_few_messages_that_always_fail_are_no_outage_in_a_quiet_topology(ago_slots):
    """Each has failed several times, and nothing else has come for minutes."""
    tried = {"lines": {"emitted": 4, "failed": 4}, "split": {"failed": 4}}
    seen = running(
        at=NOW,
        slots=slots(*[tried] * (1 + ago_slots), *[{}] * (19 - ago_slots)),
        errors=failures(*"abababab"),
        present={1: Presence(active=True, pending=0, in_back_off=1)},
        census=Census(pending=1, memory_bytes=1, feed_entries=0, feed_lag_s=0),
        in_flight_limit_s=30.0,
    )
    assert kinds(health_of(seen)) == ["failing", "in_back_off"]
    # A message that waits beside them shows that nothing else is acked either.
    beside = health_of(replace(seen, queues=(replace(QUEUE, ready=1),)))
    assert ("nothing_acked" in kinds(beside)) == (ago_slots > 0)


def test_messages_that_all_wait_for_their_back_off_are_trouble_after_a_minute():
    tried = slots({}, {}, {}, {"lines": {"emitted": 16, "failed": 16}})
    present = {1: Presence(active=True, pending=0, in_back_off=16)}
    seen = running(at=NOW, slots=tried, present=present, in_flight_limit_s=30.0)
    assert kinds(health_of(seen)) == ["nothing_acked", "in_back_off"]


def test_one_message_that_fails_alone_is_no_outage():
    some = {"lines": {"emitted": 1, "failed": 1}, "split": {"failed": 1}}
    assert health_of(outage(slots=slots(some))).badge == "strained"


def test_failures_beside_acks_are_no_outage():
    some = {"lines": {"emitted": 40, "failed": 39, "acked": 1}, "split": {"failed": 39}}
    assert kinds(health_of(outage(slots=slots(some)))) == ["failing"]


def test_a_reason_older_than_the_rate_is_not_shown_beside_it():
    error = ErrorReport(
        at=NOW - timedelta(minutes=8), component="split", task=2, message="RuntimeError: old"
    )
    [failing] = health_of(outage(errors=[error])).findings
    assert failing.reason == "fails 1.3 tuples per second"


def test_nothing_was_acked_since_the_first_message_after_a_quiet_time_came():
    given = slots({}, {}, {}, {"lines": {"emitted": 16}}, *[{}] * 16)
    health = HealthMemory().judge(
        outage(slots=given, in_flight_limit_s=30.0), ServerProblems(), NOW
    )
    assert kinds(health) == ["nothing_acked"]
    assert health.findings[0].reason.startswith("no message was acked for 2 min 0 s")
    assert health.findings[0].since == NOW - timedelta(minutes=2)


def test_messages_that_wait_while_none_is_acked_are_trouble():
    seen = outage(
        slots=slots({}, {}, {}, {"lines": {"emitted": 16}}, {"lines": {"acked": 5}}),
        in_flight_limit_s=30.0,
    )
    health = health_of(seen)
    assert kinds(health) == ["nothing_acked"]
    assert (
        health.findings[0].reason == "no message was acked for 2 min 0 s, and 2,182 messages wait"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"in_flight_limit_s": 300.0},
        {"in_flight_limit_s": 0.0},
        {"driver_at": Whereabouts(host="h", pid=1, since=NOW - timedelta(seconds=20))},
        {"inboxes": {2: inbox(doing_s=80.0)}},
        {"state": State.DEACTIVATED},
    ],
    ids=["may take longer", "may take forever", "just started", "is at work", "by order"],
)
def test_it_may_ack_nothing_for_a_while(changed):
    given = {"slots": slots({}, {}, {}, {"lines": {"emitted": 16}}, {"lines": {"acked": 5}})}
    health = health_of(outage(**{**given, "in_flight_limit_s": 30.0, **changed}))
    assert "nothing_acked" not in kinds(health)


@pytest.mark.parametrize(
    ("oldest_s", "emitted", "found"),
    [(115.0, 16, []), (20.0, 16, ["nothing_acked"]), (115.0, 0, ["nothing_acked"])],
    ids=["windows hold them", "windows have closed since", "the spout is full"],
)
def test_messages_that_windows_hold_need_no_ack(oldest_s, emitted, found):
    """They are acked when their last window closes."""
    lately, before = {"lines": {"emitted": emitted}}, {"lines": {"emitted": 16}}
    given = slots(lately, lately, lately, before, {"lines": {"acked": 5}})
    holding = inbox(tuples=45, oldest_s=oldest_s, windows=OpenWindows(number=1, tuples=45))
    seen = outage(slots=given, inboxes={2: holding}, in_flight_limit_s=30.0)
    assert kinds(health_of(seen)) == found


def standing(*, held=45, silent_s=40.0, watermark_us=1_709_209_800_000_000, **changed):
    """A windowed bolt behind a spout that has been full for this long."""
    windows = OpenWindows(number=1, tuples=held, watermark_us=watermark_us)
    since = NOW - timedelta(seconds=silent_s)
    holding = inbox(tuples=held, oldest_s=90.0, windows=windows)
    given = {"at": NOW, "inboxes": {2: holding}, "silent": {"lines": since}}
    return running(**{**given, **changed})


def test_windows_that_wait_for_a_spout_that_can_send_nothing_are_trouble_of_their_own():
    health = HealthMemory().judge(standing(), ServerProblems(), NOW)
    assert (health.grade, kinds(health)) == (Grade.ILL, ["windows_stand"])
    [finding] = health.findings
    assert (finding.component, finding.since) == ("split", NOW - timedelta(seconds=40))
    assert finding.reason == (
        "holds 45 tuples in windows that stand still, as lines can send nothing: it has all the "
        "messages that it may hold (raise its prefetch, add spout workers, or make the windows "
        "shorter), or no connection to RabbitMQ"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"silent": {}},
        {"silent_s": 20.0},
        {"held": 0},
        {"watermark_us": None},
        {"slots": slots({"split": {"windows_closed": 1}})},
        {"state": State.DEACTIVATED},
    ],
    ids=["it sends", "for a moment", "none held", "the clock closes them", "closing", "by order"],
)
def test_windows_that_close_in_time_do_not_stand(changed):
    assert "windows_stand" not in kinds(health_of(standing(**changed)))


def test_windows_stand_for_a_spout_behind_other_bolts_too():
    edges = (edge("lines", "split"), edge("split", "sums"), edge("others", "rest"))
    seen = overview(
        *edges,
        spouts=("lines", "others"),
        present=PRESENT,
        driver=True,
        at=NOW,
        inboxes={2: inbox(windows=OpenWindows(number=1, tuples=4, watermark_us=1))},
        silent={"lines": NOW - timedelta(minutes=2)},
    )
    # All bolts of this graph have the same task.
    found = [each for each in health_of(seen).findings if each.kind.value == "windows_stand"]
    assert [each.component for each in found] == ["split", "sums"]


def test_a_message_that_comes_after_a_quiet_hour_is_no_trouble_while_it_is_worked_on():
    census = Census(pending=1, memory_bytes=1, feed_entries=0, feed_lag_s=0)
    late = running(at=NOW, slots=slots({"lines": {"emitted": 1}}, *[{}] * 19), census=census)
    memory = HealthMemory()
    for second in range(0, 10, 2):
        at = NOW + timedelta(seconds=second)
        assert memory.judge(late, ServerProblems(), at).badge == "well"


def test_a_spout_that_takes_nothing_is_in_trouble_from_the_second_look_on():
    seen = outage(slots=slots(*[{}] * 21), in_flight_limit_s=30.0)
    memory = HealthMemory()
    assert memory.judge(seen, ServerProblems(), NOW).badge == "well", "it may have come just now"
    later = memory.judge(seen, ServerProblems(), NOW + timedelta(seconds=2))
    assert kinds(later) == ["nothing_acked"]


def test_what_a_bolt_postpones_is_told_apart_from_what_it_fails():
    said = [
        ("RetryLater: again after 30 s: the API is busy", 1),
        ("ValueError: no amount", 2),
    ]
    errors = [
        ErrorReport(at=NOW - timedelta(seconds=ago), component="split", task=2, message=message)
        for message, ago in said
    ]
    counts = {"lines": {"acked": 9}, "split": {"failed": 90, "retry_later": 60}}
    health = health_of(running(at=NOW, slots=slots(counts), errors=errors))
    assert [(each.kind.value, each.reason) for each in health.findings] == [
        ("failing", "fails 1.0 tuples per second, last: ValueError: no amount"),
        (
            "retry_later",
            (
                "postpones 2.0 tuples per second with RetryLater, last: RetryLater: again after "
                "30 s: the API is busy"
            ),
        ),
    ]


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"slots": slots({"lines": {"timeout": 3, "acked": 1}})}, "timeouts"),
        ({"present": {1: Presence(active=True, pending=0, in_back_off=16)}}, "in_back_off"),
        (
            {
                "slots": slots({"lines": {"acked": 100, "complete_ms_bucket:108": 100}}),
                "in_flight_limit_s": 30.0,
            },
            "near_timeout",
        ),
    ],
)
def test_spouts_and_their_latency_are_judged_too(changed, kind):
    health = health_of(running(**changed))
    assert (health.badge, kinds(health)) == ("strained", [kind])


def judged_slow(tasks, grouping, ready=50, timeout_s=30.0, pending=1):
    """Return the findings about messages of 20 s at a bolt with these tasks."""
    graph = Graph(
        spouts=(Component(name="lines", tasks=(1,), queue="orders"),),
        bolts=(Component(name="split", tasks=tasks),),
        edges=(edge("lines", "split", grouping=grouping),),
        shards=1,
    )
    seen = running(
        graph=graph,
        slots=slots({"lines": {"acked": 4, "complete_us": 80_000_000}}),
        in_flight_limit_s=timeout_s,
        census=Census(pending=pending, memory_bytes=0, feed_entries=0, feed_lag_s=0),
    )
    seen = replace(seen, queues=(replace(QUEUE, ready=ready, consumers=1),))
    return [each for each in health_of(seen).findings if each.kind.value == "near_timeout"]


def test_slow_messages_that_are_dealt_to_tasks_hold_others_back():
    [found] = judged_slow((2, 3), "fields")
    assert found.reason == (
        "a message takes 20.0 s on average, and times out after 30.0 s; one task of split may get "
        "several, so spouts emit few, and 50 messages wait: raise message_timeout_secs"
    )
    assert not judged_slow((2, 3), "fields", ready=0), "none waits"
    assert not judged_slow((2, 3), "fields", timeout_s=60.0)
    assert not judged_slow((2, 3), "fields", pending=2), "enough are in flight"


@pytest.mark.parametrize(("tasks", "grouping"), [((2, 3), "shuffle"), ((2,), "fields")])
def test_slow_messages_that_wait_for_a_free_task_do_not(tasks, grouping):
    assert not judged_slow(tasks, grouping)


def test_messages_that_windows_hold_are_not_near_their_timeout():
    given = {
        "slots": slots({"lines": {"acked": 100, "complete_ms_bucket:108": 100}}),
        "in_flight_limit_s": 30.0,
        "inboxes": {2: inbox(windows=OpenWindows(number=3, tuples=40))},
    }
    assert health_of(running(**given)).grade is Grade.WELL


def test_a_queue_without_consumers_is_found_when_it_lasts():
    seen = replace(running(), queues=(replace(QUEUE, ready=0, consumers=0),))
    memory = HealthMemory()
    assert memory.judge(seen, ServerProblems(), NOW).badge == "well", "it may connect again"
    health = memory.judge(seen, ServerProblems(), NOW + timedelta(seconds=11))
    assert kinds(health) == ["no_consumers"]
    assert health.findings[0].queue == "orders"


def test_a_finding_says_since_when_as_long_as_it_stands():
    memory = HealthMemory()
    seen = running(driver=False)

    def since(at, seen=seen):
        return [each.since for each in memory.judge(seen, ServerProblems(), at).findings]

    assert since(NOW - timedelta(minutes=1), running()) == []
    assert since(NOW) == since(NOW + timedelta(minutes=5)) == [NOW]
    assert since(NOW + timedelta(minutes=6), running()) == []
    again = NOW + timedelta(minutes=7)
    assert since(again) == [again]


@pytest.mark.parametrize("problems", [ServerProblems(), ServerProblems(redis="it is away")])
def test_nobody_knows_since_when_a_finding_of_the_first_reading_stands(problems):
    """The time of the reading would be taken for the time when the trouble began."""
    memory = HealthMemory()
    seen = running(driver=False)
    for minutes in range(2):
        at = NOW + timedelta(minutes=minutes)
        assert [each.since for each in memory.judge(seen, problems, at).findings] == [None]


def test_a_finding_began_when_its_figures_say():
    memory = HealthMemory()
    seen = running(inboxes={2: inbox(tuples=7, oldest_s=90.0)})
    [finding] = memory.judge(seen, ServerProblems(), NOW).findings
    assert finding.since == NOW - timedelta(seconds=90)


def test_every_kind_is_either_trouble_or_strain():
    assert {kind.level for kind in FindingKind} == {Grade.ILL, Grade.STRAINED}
    assert {kind.level.label for kind in FindingKind} == {"in_trouble", "strained"}


@pytest.mark.parametrize("redis", [None, "Redis does not answer"])
def test_a_broker_that_takes_no_messages_is_trouble_of_its_own(redis):
    problems = ServerProblems(redis=redis, blocked="RabbitMQ has a memory alarm")
    health = health_of(running(), problems)
    assert health.grade is Grade.ILL
    assert FindingKind.RABBITMQ_BLOCKED in {each.kind for each in health.findings}


def test_a_paused_bolt_is_paused_and_neither_behind_nor_stuck():
    paused = {"split": NOW - timedelta(minutes=5)}
    given = {
        "inboxes": {2: inbox(tuples=4, oldest_s=300.0)},
        "slots": slots(*[{"lines": {"emitted": 9}}] * 20),
        "census": Census(pending=900, memory_bytes=0, feed_entries=0, feed_lag_s=0.0),
        "at": NOW,
    }
    assert set(kinds(health_of(running(**given)))) >= {"nothing_acked", "behind"}
    health = HealthMemory().judge(running(paused=paused, **given), ServerProblems(), NOW)
    assert (health.grade, health.badge, kinds(health)) == (
        Grade.STRAINED,
        "paused",
        ["bolt_paused"],
    )
    [finding] = health.findings
    assert finding.component == "split"
    assert finding.since == paused["split"]
    assert finding.reason.startswith("is paused by order; 4 tuples wait for it")
