from datetime import timedelta

import pytest

from tiercel import AsyncBolt, BasicBolt, BatchBolt, QueueSink, QueueSpout, TopologyBuilder
from tiercel.acker.ids import line_of
from tiercel.acker.inbox.contract import InboxFigures
from tiercel.spark_jobs.topology.graph import extra_task, inboxes_of
from tiercel.workers.spout.admission import (
    FIRST_BOUND,
    LARGEST_BOUND,
    UNPROVEN_BOUND,
    Admission,
    Crowd,
    Shape,
    crowd_of,
)

TIMEOUT = timedelta(seconds=30)


def seen(fullest, in_long_call=False):
    return lambda: Crowd(fullest, in_long_call)


# Bolts hold tuples, and are in no call.
HELD = seen(100.0)


def adaptive(bound=FIRST_BOUND, timeout=TIMEOUT, **shape):
    return Admission(bound=bound, timeout=timeout, shape=Shape(**shape))


def rounds(admission, latency_s, count, now=1_000.0):
    """Fill the bound and complete it ``count`` times; return the time of the last completion."""
    admission.reached(now)
    for _ in range(count):
        took_s = latency_s(admission.bound) if callable(latency_s) else latency_s
        at = now
        while at < now + took_s:
            at = min(at + 0.5, now + took_s)
            admission.reached(at)
        now += took_s
        admission.completed(admission.bound, admission.bound * took_s, now)
    return now


def busy(needed, least_s=0.02):
    """Return the latency of tasks that ``needed`` tuples keep busy."""
    return lambda bound: least_s * max(1.0, bound / needed)


def test_a_bound_that_the_topology_sets_stays():
    fixed = Admission.for_topology(7, TIMEOUT)
    now = rounds(fixed, 0.001, 100)
    fixed.timed_out(now, now + 30)
    fixed.failed(0.1, now + 30)
    fixed.look(now + 31, 7, seen(1.0))
    fixed.look(now + 3_600, 0, seen(0.0))
    assert fixed.bound == 7


def test_it_at_most_doubles_in_a_round():
    admission = adaptive()
    bounds = []
    for number in range(4):
        rounds(admission, 0.01, 1, 1_000.0 + 0.01 * number)
        bounds.append(admission.bound)
    assert bounds == [4, 8, 16, 32]


@pytest.mark.parametrize(
    ("per_s", "least_s", "most_s"),
    [(1_000, 0.14, 0.3), (5_000, 0.3, 0.6), (50_000, 0.14, 0.3), (500_000, 0.14, 0.3)],
)
def test_at_high_rates_a_quarter_of_a_second_is_in_flight_and_between_them_half_a_second(
    per_s, least_s, most_s
):
    admission = adaptive()
    now = rounds(admission, busy(per_s * 0.02), 60)
    rounds(admission, busy(per_s * 0.02), 200, now)
    assert least_s * per_s <= admission.bound <= most_s * per_s


def test_trees_of_more_bolts_in_a_row_may_take_longer():
    few = adaptive(depth=2)
    many = adaptive(depth=8)
    for admission in (few, many):
        rounds(admission, busy(1_000), 100)
    assert many.bound > 2 * few.bound


def test_a_latency_that_no_bound_makes_longer_does_not_keep_the_bound_small():
    """For example, bolts that ack all held tuples every ten seconds."""
    admission = adaptive()
    rounds(admission, 10.0, 60)
    assert admission.bound > 1_000


def test_a_bound_that_is_not_reached_does_not_grow():
    admission = adaptive()
    for now in range(100):
        admission.completed(1, 0.01, now + 0.01)
    assert admission.bound == FIRST_BOUND


def test_work_that_becomes_slower_shrinks_it_by_half_in_a_round_at_most():
    admission = adaptive()
    now = rounds(admission, busy(1_000), 30)
    before = admission.bound
    now = rounds(admission, busy(50), 1, now)
    assert admission.bound == before // 2
    rounds(admission, busy(50), 20, now)
    assert admission.bound < before / 8


@pytest.mark.parametrize("dealt", [False, True])
def test_each_task_has_enough_however_low_the_rate(dealt):
    admission = adaptive(places=16, dealt=dealt)
    rounds(admission, lambda bound: 3.0 * max(1.0, bound / 16), 40)
    assert 24 <= admission.bound <= 64


class Calls(AsyncBolt):
    """Has a hundred calls under way at once."""

    async def execute(self, tup, collector):
        pass


class Batches(BatchBolt):
    size = 50

    def execute_batch(self, tuples, collector):
        pass


class Look(BasicBolt):
    def execute(self, tup, collector):
        pass


def shape_of(grouping, tasks, spouts=1):
    builder = TopologyBuilder("t")
    builder.set_spout("spout", QueueSpout("q", fields="word string"), parallelism=spouts)
    builder.set_bolt("calls", Calls(), parallelism=2).shuffle_grouping("spout")
    look = builder.set_bolt("look", Look(), parallelism=tasks)
    look.fields_grouping("spout", "word") if grouping == "fields" else look.shuffle_grouping(
        "spout"
    )
    return Shape.of(builder.build())


def test_the_shape_counts_calls_and_tasks_for_each_spout_task():
    assert shape_of("shuffle", 4) == Shape(depth=1, places=204, dealt=False, first=4)
    assert shape_of("shuffle", 4, spouts=2) == Shape(depth=1, places=102, dealt=False, first=2)


class Passes(Calls):
    output_fields = "word string"


def first_bound(*bolts, spouts=1, **sinks):
    """Return the first bound with these bolts after the spout: class, tasks and settings."""
    builder = TopologyBuilder("t")
    builder.set_spout("spout", QueueSpout("q", fields="word string"), parallelism=spouts)
    for at, (bolt, tasks, settings, source) in enumerate(bolts):
        added = builder.set_bolt(f"b{at}", bolt, parallelism=tasks, config=settings)
        if "ordered_by" in settings:
            added.fields_grouping(source, "word")
        else:
            added.shuffle_grouping(source)
    for name, sink in sinks.items():
        builder.set_bolt(name, sink).shuffle_grouping("b0")
    return Admission.for_topology(None, TIMEOUT, Shape.of(builder.build())).bound


def test_the_first_bound_is_as_many_tuples_as_begin_at_once():
    assert first_bound((Look(), 8, {}, "spout")) == 8
    assert first_bound((Look(), 8, {}, "spout"), spouts=2) == 4
    assert first_bound((Look(), 2, {"threads": 16}, "spout")) == 32
    assert first_bound((Calls(), 4, {}, "spout")) == 400
    assert first_bound((Calls(), 4, {}, "spout"), (Look(), 8, {}, "spout")) == 8
    assert first_bound((Passes(), 4, {}, "spout"), sink=QueueSink("answers")) == 400


def test_the_first_bound_is_two_if_tuples_may_wait_for_others():
    assert first_bound((Look(), 1, {}, "spout")) == 2
    assert first_bound((Look(), 8, {}, "spout"), spouts=8) == 2
    assert first_bound((Look(), 8, {"ordered_by": "word"}, "spout")) == 2
    assert first_bound((Look(), 8, {"rate_limit": "10/s"}, "spout")) == 2
    assert first_bound((Passes(), 4, {}, "spout"), (Look(), 4, {}, "b0")) == 2


def test_after_an_idle_time_the_bound_is_the_first_one_unless_tuples_timed_out():
    admission = adaptive(200, first=100)
    admission.look(1_000.0, 0, lambda: None)
    for second in range(10):
        admission.look(1_001.0 + second, 0, lambda: None)
    assert admission.bound == 100
    admission.reached(1_020.0)
    admission.timed_out(1_020.0, 1_050.0)
    for second in range(100, 110):
        admission.look(2_000.0 + second, 0, lambda: None)
    assert admission.bound <= 50


def test_only_inboxes_of_several_tasks_are_dealt_to():
    assert shape_of("fields", 4).dealt
    assert not shape_of("fields", 1).dealt


def test_a_rebalance_changes_what_is_enough():
    admission = adaptive(places=1)
    now = rounds(admission, 2.0, 1)
    admission.follow(Shape(places=100))
    rounds(admission, 2.0, 20, now)
    assert admission.bound >= 100


def test_a_timeout_halves_it_once_for_all_tuples_that_were_emitted_before():
    admission = adaptive(500)
    now = rounds(admission, 0.1, 1)
    before = admission.bound
    for _ in range(100):
        admission.timed_out(now - 30, now)
    assert admission.bound == before // 2
    admission.timed_out(now, now + 30)
    assert admission.bound < before // 2


def test_timeouts_leave_what_completes_in_five_seconds_and_at_least_one():
    for completed, bound in ((60, 10), (0, 1)):
        admission = adaptive(500)
        admission.reached(0.0)
        admission.completed(completed, 0.0, 15.0)
        admission.timed_out(0.0, 30.0)
        assert admission.bound == bound


def test_after_timeouts_it_grows_again_as_from_the_beginning():
    admission = adaptive(500)
    admission.reached(0.0)
    admission.timed_out(0.0, 30.0)
    assert admission.bound == 1
    rounds(admission, 0.02, 10, 40.0)
    assert admission.bound > 500


def test_tuples_that_leave_without_an_outcome_hold_up_nothing():
    """They are given back, and others complete instead."""
    admission = adaptive(100)
    admission.reached(0.0)
    for number in range(1, 21):
        admission.completed(5, 0.05, number / 1_000)
    assert admission.bound > 100


def test_an_idle_time_makes_no_round():
    admission = adaptive(100)
    admission.reached(0.0)
    admission.completed(99, 9.9, 0.1)
    admission.reached(500.0)
    admission.completed(1, 0.1, 500.1)
    assert admission.bound == 100
    admission.completed(100, 10.0, 500.15)
    assert admission.bound > 100


def test_bolts_that_wait_for_more_tuples_are_given_more():
    admission = adaptive()
    for now in range(23):
        admission.reached(float(now))
        admission.look(float(now), admission.bound, HELD)
    assert admission.bound == UNPROVEN_BOUND
    for now in range(23, 1_000):
        admission.reached(float(now))
        admission.look(float(now), admission.bound, HELD)
    assert admission.bound == UNPROVEN_BOUND, "slower work is finished by no bound"


def test_a_call_that_takes_most_of_the_timeout_is_no_reason_for_more():
    admission = adaptive()
    for now in range(300):
        admission.reached(float(now))
        # A task's next call is reported a few seconds after it begins.
        admission.look(float(now), admission.bound, seen(2.0, in_long_call=now % 27 > 3))
    assert admission.bound == FIRST_BOUND


@pytest.mark.parametrize(
    ("places", "tuples", "bounds"),
    [
        (4, 1, [2, 2, 4, 4, 4, 4, 4, 4]),
        (100, 1, [2, 2, 4, 4, 8, 8, 16, 16]),
        (5, 2, [2, 2, 2, 2, 2, 2, 2, 2]),
        (16, 5, [2, 2, 3, 3, 3, 3, 3, 3]),
    ],
)
def test_long_calls_with_many_free_places_beside_them_are_a_reason_for_more(places, tuples, bounds):
    """Each message is some tuples at the bolt."""
    admission = adaptive(places=places)
    found = []
    for now in range(len(bounds)):
        admission.reached(float(now))
        crowd = seen(tuples * admission.bound / places, in_long_call=now > 0)
        admission.look(float(now), admission.bound, crowd)
        found.append(admission.bound)
    assert found == bounds


def slow_rounds(admission, places, count, latency_s=20.0, tuples=1):
    """Complete ``count`` rounds of slow messages of some tuples each, and look each second."""
    now = 1_000.0
    for _ in range(count):
        for _ in range(int(latency_s)):
            now += 1
            admission.reached(now)
            admission.look(now, admission.bound, seen(tuples * admission.bound / places))
        admission.completed(admission.bound, admission.bound * latency_s, now)


@pytest.mark.parametrize(("places", "tuples", "bound"), [(16, 1, 16), (49, 1, 49), (16, 3, 5)])
def test_slow_tuples_let_it_grow_until_no_place_is_free(places, tuples, bound):
    admission = adaptive(places=places)
    slow_rounds(admission, places, 2, tuples=tuples)
    assert admission.bound == min(bound, 8), "it doubles at most"
    slow_rounds(admission, places, 10, tuples=tuples)
    assert admission.bound == bound


def test_slow_tuples_that_nobody_can_look_at_do_not_let_it_grow():
    admission = adaptive(places=16)
    now = 0.0
    for _ in range(10):
        for _ in range(20):
            now += 1
            admission.reached(now)
            admission.look(now, admission.bound, lambda: None)
        admission.completed(admission.bound, admission.bound * 20.0, now)
    assert admission.bound == FIRST_BOUND


def test_the_bolts_are_looked_at_only_while_tuples_are_slow_or_nothing_completes():
    asked = []
    admission = adaptive(places=16)
    now = rounds(admission, 0.02, 10)
    admission.look(now, admission.bound, lambda: asked.append(1))
    admission.look(now + 0.9, admission.bound, lambda: asked.append(1))
    assert not asked
    admission.look(now + 1, admission.bound, lambda: asked.append(1))
    assert asked


# -- the crowd at the bolts ------------------------------------------------------------------------


def figures(tuples, oldest_s=5.0, seen_s=1.0, doing_s=None):
    return InboxFigures(
        tuples=tuples, bytes=0, adopted=True, oldest_s=oldest_s if tuples else 0.0, attempts=1,
        seen_s=seen_s, doing_s=doing_s,
    )  # fmt: skip


def crowd_at(topology, tuples, in_line=0, beside=(), **reported):
    """Return the crowd with these tuples in the inboxes of the tasks of the bolt ``look``, and
    ``beside`` them in those of extra tasks.
    """
    found = {inbox: figures(0) for inbox in inboxes_of(topology)}
    tasks = topology.task_ids("look")
    found |= {extra_task(tasks[0], n): figures(one) for n, one in enumerate(beside, 1)}
    for task, number in zip(tasks, tuples, strict=True):
        found[task] = figures(number, **(reported if number else {}))
    if in_line:
        found[line_of(tasks)] = figures(in_line, seen_s=None)
    return crowd_of(topology, found)


def topology_of(bolt, tasks, grouping="shuffle", **config):
    builder = TopologyBuilder("t")
    builder.set_spout("spout", QueueSpout("q", fields="word string"))
    builder.set_bolt("quick", Look()).shuffle_grouping("spout")
    look = builder.set_bolt("look", bolt, parallelism=tasks, config=config)
    look.fields_grouping("spout", "word") if grouping == "fields" else look.shuffle_grouping(
        "spout"
    )
    return builder.build()


def test_the_crowd_is_the_fullest_bolts():
    shared = topology_of(Look(), 4)
    assert crowd_at(shared, [0, 0, 0, 0]) == Crowd(0.0, in_long_call=False)
    assert crowd_at(shared, [1, 0, 1, 0]).fullest == 0.5
    assert crowd_at(shared, [1, 1, 1, 1], in_line=2).fullest == 1.5
    assert crowd_at(topology_of(Calls(), 1), [25]).fullest == 0.25
    assert crowd_at(topology_of(Calls(), 2), [25, 0]).fullest == 0.125
    assert crowd_at(topology_of(Batches(), 2), [1, 0]).fullest == 0.5


def test_tuples_may_wait_in_an_order_or_for_a_rate_limit_though_places_are_free():
    ordered = topology_of(Look(), 4, "fields", ordered_by="word", threads=8)
    assert crowd_at(ordered, [1, 0, 0, 0], doing_s=5.0).in_turn
    assert not crowd_at(ordered, [0, 0, 0, 0]).in_turn
    limited = topology_of(Look(), 4, rate_limit="10/s")
    assert crowd_at(limited, [0, 0, 0, 0], in_line=1).in_turn
    admission = adaptive(places=32)
    for now in range(10):
        admission.reached(float(now))
        admission.look(float(now), admission.bound, lambda: Crowd(0.1, True, True))
    assert admission.bound == FIRST_BOUND


def test_extra_tasks_are_places_too_while_they_have_a_process():
    shared = topology_of(Look(), 4)
    assert crowd_at(shared, [1, 1, 1, 1], beside=[0, 0, 0, 0]).fullest == 0.5
    assert crowd_at(shared, [1, 1, 1, 1], beside=[1, 1, 1, 1], in_line=4).fullest == 1.5
    found = {task: figures(1) for task in inboxes_of(shared)}
    found[extra_task(shared.task_ids("look")[0], 1)] = figures(0, seen_s=60.0)
    assert crowd_of(shared, found).fullest == 1.25, "a tuple each, and one in the line"


def test_where_tuples_are_dealt_the_fullest_task_counts():
    assert crowd_at(topology_of(Look(), 4, "fields"), [2, 0, 1, 0]).fullest == 2.0


def test_where_tuples_behind_a_long_call_do_not_time_out_all_tasks_count():
    dealt = topology_of(Look(), 4, "fields", execute_timeout_secs=3600)
    assert crowd_at(dealt, [2, 0, 1, 0]).fullest == 0.3


@pytest.mark.parametrize("grouping", ["shuffle", "fields"])
def test_tuples_that_pass_through_a_quick_bolt_do_not_crowd_it(grouping):
    assert crowd_at(topology_of(Look(), 4, grouping), [2, 1, 1, 1], oldest_s=0.01).fullest == 0.0
    assert crowd_at(topology_of(Look(), 4, grouping), [2, 1, 1, 1], oldest_s=0.2).fullest > 1.0


def test_a_task_without_a_process_is_no_place_and_in_no_call():
    shared = topology_of(Look(), 4)
    tuples = [1, 0, 0, 0]
    assert crowd_at(shared, tuples, seen_s=11.0, doing_s=50.0) == Crowd(1 / 3, in_long_call=False)
    assert crowd_at(shared, tuples, seen_s=1.0, doing_s=5.0) == Crowd(1 / 4, in_long_call=True)
    assert crowd_at(shared, [1, 1, 1, 1], seen_s=None).fullest == float("inf")


@pytest.mark.parametrize("crowd", [HELD, seen(2.0, in_long_call=True)], ids=["held", "in calls"])
def test_without_timeouts_bolts_that_wait_are_given_as_many_as_they_want(crowd):
    admission = adaptive(timeout=None)
    for now in range(300):
        admission.reached(float(now))
        admission.look(float(now), admission.bound, crowd)
    assert admission.bound == LARGEST_BOUND


def test_a_bound_that_nothing_came_near_for_a_minute_is_forgotten():
    admission = adaptive(5_000)
    for now in range(62, 80):
        admission.look(float(now), 30, HELD)
    assert admission.bound == 60
    for now in range(80, 100):
        admission.look(float(now), 0, HELD)
    assert admission.bound == UNPROVEN_BOUND


def test_a_short_timeout_still_leaves_room_to_grow_in():
    admission = adaptive(timeout=timedelta(seconds=6))
    rounds(admission, 0.4, 3)
    assert admission.bound > FIRST_BOUND


def test_the_bound_has_an_end():
    admission = adaptive()
    rounds(admission, 0.01, 100)
    assert admission.bound == LARGEST_BOUND


def test_tuples_that_fail_let_a_small_bound_grow_to_sixteen():
    admission = adaptive()
    now = 0.0
    for _ in range(400):
        now += 0.01
        admission.reached(now)
        admission.failed(0.01, now)
    assert admission.bound == UNPROVEN_BOUND
