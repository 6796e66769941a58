"""The range of executors: who may give it, what is refused, what a message takes, and what Spark
is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tiercel import BasicBolt, Config, QueueSpout, Topology, TopologyBuilder
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.spark.executors import Executor
from tiercel.workers.config import Settings
from tiercel.workers.driver.executors import (
    Executors,
    Fleet,
    Work,
    least_of,
    options_of,
    queues_of,
    range_of,
)
from tiercel.workers.driver.scaling import ExecutorRange, Lives, Observation, Present, orders
from tiercel.workers.errors import ConfigError
from tiercel.workers.loading import with_executors


class Echo(BasicBolt):
    output_fields = "text string"

    def execute(self, tup, collector):
        collector.emit([tup["text"]])


def topology(config: Config | None = None, grouping="shuffle_grouping", fields=()) -> Topology:
    builder = TopologyBuilder("scaled", config or Config(executors=(2, 20)))
    builder.set_spout("texts", QueueSpout("texts", fields="text string"))
    builder.set_spout("again", QueueSpout("texts", fields="text string"))
    echo = builder.set_bolt("echo", Echo(), parallelism=4)
    getattr(echo, grouping)("texts", *fields)
    return builder.build()


class Cluster:
    """A Spark of executors with one slot each, the run on them, and the lease."""

    def __init__(self, *, quota=100, accepts=True):
        self.quota, self.accepts = quota, accepts
        self.total = self.numbers = 0
        self.asked: list[int] = []
        self.ended: list[str] = []
        self.retired: list[str] = []
        self.there: dict[str, Present] = {}
        self.fleet = Fleet()
        self.has_lease = self.has_run = True
        self.reports = []
        self.join(own=1)

    def join(self, **part):
        self.numbers += 1
        id_ = str(self.numbers)
        self.there[id_] = Present(id=id_, **(part or {"extra": (self.numbers,)}))

    def give(self):
        """Start the executors that were asked for, as far as the quota allows."""
        while len(self.there) < min(self.total, self.quota):
            self.join()

    # -- as Spark

    def executors(self):
        return [Executor(id=id_, slots=1, host=f"host-{id_}") for id_ in self.there]

    def ask_for(self, total):
        self.asked.append(total)
        if self.accepts:
            self.total = total
        return self.accepts

    def end(self, executors):
        for one in executors:
            found = self.there.pop(one)
            assert found.idle, "it still executes"
            assert (found.own, found.extra) == (0, ()), "it still has tasks"
            self.ended.append(one)

    # -- as the run

    def present(self):
        return list(self.there.values())

    def retire(self, executor_id):
        found = self.there[executor_id]
        if not found.own:
            self.retired.append(executor_id)
            self.there[executor_id] = replace(found, retiring=True)
        return not found.own

    def finish(self):
        """Let the retiring executors finish what they execute."""
        for id_, one in self.there.items():
            if one.retiring:
                self.there[id_] = replace(one, extra=(), idle=True)

    # -- as the part of the driver that has the lease

    def tell(self, report):
        if self.has_lease:
            self.reports.append(report)
        return self.has_lease


class Load:
    """Messages of ten seconds of which ``waiting`` wait, always."""

    waiting = 0

    def look(self, now, present, slots, per_slot):
        return Observation(
            now=now, waiting=self.waiting, executing=0, done=0, work_s=10.0, present=present,
            slots=slots,
        )  # fmt: skip

    def close(self):
        pass


class Stage:
    """The deciding part of a driver over a cluster, second by second."""

    def __init__(self, executors=(1, 4), built=None, pods=None, **cluster):
        self.cluster = Cluster(**cluster)
        self.load = Load()
        self.now = 0.0
        self.executors = Executors(
            built or topology(),
            ExecutorRange(least=executors[0], most=executors[1]),
            self.load,
            self.cluster,
            self.cluster,
            pods=pods,
        )

    def tick(self, seconds=1, *, gives=True):
        for _ in range(seconds):
            self.now += 1
            if self.cluster.has_run:
                self.cluster.fleet.look(self.cluster)
            self.executors.look(self.now)
            if gives:
                self.cluster.give()
        return self

    @property
    def there(self):
        return sorted(self.cluster.there)

    def grown(self):
        self.load.waiting = 100
        self.tick(10)
        assert self.there == ["1", "2", "3", "4"]
        self.load.waiting = 0
        return self


class Pods:
    """The pods of the workers, one per executor."""

    def __init__(self):
        self.costs: list[dict[str, int]] = []

    def look(self, _now, costs):
        self.costs.append(costs)


def test_the_pods_of_workers_with_executors_get_a_cost():
    pods = Pods()
    stage = Stage(pods=pods).grown()
    assert pods.costs[-1] == {"host-1": 3, "host-2": 2, "host-3": 2, "host-4": 2}

    stage.tick(70)
    assert {"host-1": 3, "host-2": 1, "host-3": 1, "host-4": 1} in pods.costs


def test_a_driver_without_the_lease_leaves_the_costs_alone():
    pods = Pods()
    stage = Stage(pods=pods).tick(3)
    before = len(pods.costs)
    stage.cluster.has_lease = False
    stage.tick(10)

    assert len(pods.costs) == before


def test_without_a_range_the_number_is_the_operator_s():
    assert range_of(Config()) is None


def test_a_range_has_its_target_time_and_a_number_is_both_bounds():
    config = Config(executors=(2, 20), executors_target_secs=30)
    assert range_of(config) == ExecutorRange(least=2, most=20, target_s=30)
    assert range_of(Config(executors=4)) == ExecutorRange(least=4, most=4)


@pytest.mark.parametrize(("said", "executors"), [("3..9", (3, 9)), ("4", (4, 4)), (None, (2, 20))])
def test_the_operator_s_range_goes_before_the_topology_s(said, executors):
    assert with_executors(topology(), said).config.executors == executors


@pytest.mark.parametrize("said", ["20..2", "0..3", "2-20", "two", "2..", "٢..٣"])
def test_an_impossible_range_is_refused_in_one_line_with_an_example(said):
    with pytest.raises(ConfigError, match=r"executors.*2\.\.20") as refused:
        Settings.load(executors=said)
    assert "\n" not in str(refused.value)


def test_without_rabbitmq_s_address_the_driver_says_what_it_needs():
    with pytest.raises(TopologyError, match=r"executors=2\.\.20 .* set --amqp or TIERCEL_AMQP"):
        least_of(topology(), "spark://host:7077", None)

    least_of(topology(), "spark://host:7077", "amqp://host")


def test_in_local_mode_a_range_has_no_effect_and_a_line_says_so(caplog):
    least_of(topology(), "local[2]", None)
    assert "executors=2..20 has no effect with local[2]" in caplog.text


def test_a_queue_that_two_spouts_read_is_counted_once():
    assert queues_of(topology()) == ["texts"]


def test_the_work_of_a_message_is_of_the_last_minute():
    work = Work()
    for now in range(120):
        work.after(float(now), now, now * 0.1)
    for now in range(120, 200):
        found = work.after(float(now), now, 12 + (now - 120) * 0.5)
    assert found == pytest.approx(0.5)


def test_a_long_message_keeps_the_last_figure_until_the_next_is_done():
    work = Work()
    assert work.after(0.0, 0, 0.0) == 0
    assert work.after(600.0, 1, 600.0) == 600
    assert work.after(900.0, 1, 600.0) == 600
    assert work.after(1300.0, 2, 1300.0) == 700


def test_a_long_message_counts_from_its_beginning_however_often_it_is_looked_at():
    work = Work()
    found = [work.after(float(now), now // 600, float(now)) for now in range(2000)]
    assert set(found[600:]) == {600.0}


def test_the_first_of_many_messages_at_once_does_not_stand_for_the_work_of_all():
    work = Work()
    ends = [5.0 + 20 * each / 15 for each in range(16)]
    found = []
    for now in range(60):
        # Sixteen slots, each of which begins the next message of as many seconds at once.
        done = sum(int(now // end) for end in ends)
        found.append(work.after(float(now), done, 16.0 * now, executing=16 if now else 0))
    assert max(found) <= 15
    assert found[-1] == pytest.approx(12, abs=2)


def test_messages_that_take_long_count_before_the_first_is_done():
    work = Work()
    found = [work.after(now, 0, 4.0 * now, executing=4) for now in range(0, 601, 60)]
    assert found == [float(now) for now in range(0, 601, 60)]
    # Once they are known, the messages after them count as much from the beginning.
    assert work.after(601.0, 4, 2404.0, executing=4) == 601
    assert work.after(610.0, 4, 2440.0, executing=4) == 601


def test_messages_that_fail_at_once_do_not_look_long():
    work = Work()
    found = [work.after(now, 0, now * 1.0, failed=now, executing=1) for now in range(100)]
    assert max(found) == 0


def test_an_earlier_driver_s_work_is_not_that_of_the_messages_under_way():
    work = Work()
    assert work.after(0.0, 0, 9000.0, executing=1) == 0
    assert work.after(5.0, 0, 9005.0, executing=1) == 5


def test_counts_that_redis_lost_are_begun_anew():
    work = Work()
    work.after(0.0, 100, 10.0)
    work.after(1.0, 200, 20.0)
    assert work.after(2.0, 0, 0.0) == pytest.approx(0.1)
    work.after(3.0, 0, 0.0)
    assert work.after(4.0, 10, 5.0) == pytest.approx(0.5)


def test_executors_are_asked_for_once_and_the_empty_ones_given_back_by_name(caplog):
    caplog.set_level("INFO")
    stage = Stage().grown()
    assert set(stage.cluster.asked) == {4}
    stage.tick(80)
    # They execute, so they leave but are not ended.
    assert (sorted(stage.cluster.retired), stage.cluster.ended) == (["2", "3", "4"], [])
    stage.tick(100)
    assert stage.there == ["1", "2", "3", "4"]
    stage.cluster.finish()
    stage.tick(2)
    assert (stage.there, stage.cluster.ended) == (["1"], ["2", "3", "4"])
    stage.tick(1)
    assert (stage.there, stage.cluster.total) == (["1"], 1)
    assert "scaled gave back the executors 2, 3, 4, on which nothing ran" in caplog.text
    assert list(dict.fromkeys(stage.cluster.asked)) == [4, 1]


def test_spark_replaces_no_executor_that_ends_by_itself_after_its_last_tuple():
    stage = Stage().grown().tick(80)
    for id_ in "234":
        del stage.cluster.there[id_]
        stage.cluster.give()
        stage.tick()
    assert (stage.there, stage.cluster.ended) == (["1"], [])


def test_an_idle_executor_leaves_before_a_newer_one_that_works():
    found = [Present(id=str(each), extra=(each,), idle=each == 2) for each in range(1, 12)]
    assert orders(9, 20, found).retire == ("2", "11")


def test_executors_with_the_run_s_own_tasks_stay():
    found = [Present(id="1", own=1), Present(id="2", own=1), Present(id="3", extra=(1,))]
    assert orders(1, 4, found).retire == ("3",)
    assert orders(1, 4, found[:2]).total == 2


def test_while_an_executor_leaves_there_are_never_more_than_the_most():
    stage = Stage().grown().tick(80)
    stage.load.waiting = 100
    stage.tick(10)
    assert len(stage.there) == 4
    stage.cluster.finish()
    stage.tick(3)
    assert stage.there == ["1", "5", "6", "7"]
    assert max(stage.cluster.asked) == 4


def test_an_order_that_the_run_has_not_seen_yet_is_not_given_to_another_one_too():
    stage = Stage(executors=(1, 4)).grown()
    stage.tick(25)
    fleet, cluster = stage.cluster.fleet, stage.cluster
    fleet.look(cluster)
    fleet.retire(["4"])
    assert orders(3, 4, fleet.present()).retire == ()
    assert not next(one for one in fleet.present() if one.id == "4").is_empty


def test_a_driver_without_the_lease_gives_no_orders():
    stage = Stage()
    stage.cluster.has_lease = False
    stage.load.waiting = 100
    stage.tick(60)
    assert (stage.cluster.asked, stage.cluster.reports, stage.there) == ([], [], ["1"])


def test_between_two_runs_nobody_is_asked_for_or_leaves(monkeypatch):
    stage = Stage().grown()
    monkeypatch.setattr("tiercel.workers.driver.executors._FRESH_S", -1.0)
    stage.cluster.has_run = False
    stage.tick(100)
    assert (stage.cluster.asked, stage.cluster.retired) == ([4], [])


def test_an_executor_that_leaves_for_another_reason_does_not_count():
    stage = Stage().grown()
    stage.load.waiting = 100
    stage.tick(2)
    stage.cluster.there["3"] = Present(id="3", extra=(3,), retiring=True)
    stage.tick(2)
    assert (stage.cluster.total, stage.cluster.retired) == (4, [])
    del stage.cluster.there["3"]
    stage.tick(2)
    assert stage.there == ["1", "2", "4", "5"]


def test_an_executor_that_got_own_tasks_meanwhile_stays():
    stage = Stage().grown()
    fleet, cluster = stage.cluster.fleet, stage.cluster
    fleet.retire(["4"])
    cluster.there["4"] = Present(id="4", own=1)
    fleet.look(cluster)
    assert not any(one.retiring for one in fleet.present())


def test_a_manager_that_refuses_is_named_and_asked_again(caplog):
    stage = Stage(accepts=False)
    stage.load.waiting = 100
    stage.tick(2)
    assert "Spark refuses 4 executors for scaled, will ask again" in caplog.text
    assert "\n" not in caplog.messages[-1]
    stage.cluster.accepts = True
    stage.tick(2)
    assert len(stage.there) == 4


def test_a_quota_is_said_once_and_the_work_goes_on(caplog):
    stage = Stage(quota=2)
    stage.load.waiting = 100
    stage.tick(200)
    assert len(stage.there) == 2
    said = [line for line in caplog.messages if "has not given 2 of the 4 executors" in line]
    assert len(said) == 1
    assert "goes on with 2" in said[0]
    assert stage.cluster.reports[-1].refused == 2


def test_executors_that_end_at_once_are_not_replaced_without_pause(caplog):
    stage = Stage()
    stage.load.waiting = 100
    for second in range(300):
        if second % 3 == 2:
            stage.cluster.there = {"1": stage.cluster.there["1"]}
        stage.tick(gives=second % 3 == 0)
    assert stage.cluster.numbers < 100, "of 300 without a pause"
    said = [line for line in caplog.messages if "end soon after they come" in line]
    assert 1 <= len(said) <= 6


def test_a_machine_that_takes_its_executors_along_is_no_reason_to_wait():
    lives = Lives()
    found = [Present(id=str(each)) for each in range(8)]
    assert not lives.held(0.0, found, ())
    assert not lives.held(5.0, found[:1], ())
    assert not lives.held(6.0, found[:1], ())


def test_a_bolt_that_takes_no_extra_tasks_wants_no_executor_above_the_least():
    keyed = topology(grouping="fields_grouping", fields=("text",))
    stage = Stage(executors=(1, 4), built=keyed)
    stage.load.waiting = 100
    stage.tick(30)
    assert stage.there == ["1"]
    assert stage.cluster.reports[-1].why == "limits and tasks allow 1 slots to work"


def test_yarn_and_kubernetes_begin_with_the_least_unless_the_operator_says_otherwise():
    said = Config(executors=(2, 20), spark_options={"spark.executor.instances": "5"})
    assert options_of(said)["spark.executor.instances"] == "5"
    assert options_of(Config(executors=(2, 20))) == {"spark.executor.instances": "2"}
    assert options_of(Config()) == {}


def test_the_run_s_own_tasks_are_on_the_least_executors():
    assert least_of(topology(), "spark://host:7077", "amqp://host") == 2
    assert least_of(topology(), "local[2]", None) == 0
    assert least_of(topology(Config()), "spark://host:7077", None) == 0


def test_while_own_tasks_have_no_executor_nobody_is_shown_and_nobody_leaves():
    stage = Stage().grown()
    run = SimpleNamespace(topology=topology(), hosts=((2, 3), (4, 5)))
    fleet, cluster = stage.cluster.fleet, stage.cluster
    fleet.begin(run)
    assert fleet.per_slot == {"echo": 2}
    fleet.retire(["2"])
    fleet.look(cluster)
    assert (fleet.present(), cluster.retired) == ((), [])
    cluster.there["1"] = Present(id="1", own=4)
    fleet.look(cluster)
    assert (len(fleet.present()), cluster.retired) == (4, ["2"])
