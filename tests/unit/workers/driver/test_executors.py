"""The range of executors: who may give it, what is refused, and what a message takes."""

from __future__ import annotations

import pytest

from tiercel import BasicBolt, Config, QueueSpout, Topology, TopologyBuilder
from tiercel.spark_jobs.errors import TopologyError
from tiercel.workers.config import Settings
from tiercel.workers.driver.executors import Work, queues_of
from tiercel.workers.driver.process import check_executors, range_of
from tiercel.workers.driver.scaling import ExecutorRange
from tiercel.workers.errors import ConfigError
from tiercel.workers.loading import with_executors


class Echo(BasicBolt):
    output_fields = "text string"

    def execute(self, tup, collector):
        collector.emit([tup["text"]])


def topology(config: Config | None = None) -> Topology:
    builder = TopologyBuilder("scaled", config or Config(executors=(2, 20)))
    builder.set_spout("texts", QueueSpout("texts", fields="text string"))
    builder.set_spout("again", QueueSpout("texts", fields="text string"))
    builder.set_bolt("echo", Echo(), parallelism=4).shuffle_grouping("texts")
    return builder.build()


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
        check_executors(topology(), "spark://host:7077", None)

    check_executors(topology(), "spark://host:7077", "amqp://host")


def test_in_local_mode_a_range_has_no_effect_and_a_line_says_so(caplog):
    check_executors(topology(), "local[2]", None)
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
    assert work.after(1300.0, 2, 1300.0) == pytest.approx(650)


def test_counts_that_redis_lost_are_begun_anew():
    work = Work()
    work.after(0.0, 100, 10.0)
    work.after(1.0, 200, 20.0)
    assert work.after(2.0, 0, 0.0) == pytest.approx(0.1)
    work.after(3.0, 0, 0.0)
    assert work.after(4.0, 10, 5.0) == pytest.approx(0.5)
