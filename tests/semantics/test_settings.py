"""Settings of a topology, in use."""

import pytest

from tests.semantics.components import Failing, Pass, Silent, chain, feeding, outcome
from tiercel import BasicBolt, Bolt, Config, TopologyBuilder


def test_a_spout_task_has_at_most_max_spout_pending_tuples_in_flight(cluster_of):
    cluster = cluster_of(chain(feeding(*range(5)), Silent()), Config(max_spout_pending=2))
    cluster.run_until_idle()
    assert outcome(cluster) == ([], [], 2)
    assert cluster.read_tuples("s") == [[0], [1]]
    cluster.advance_time(30)
    assert outcome(cluster) == ([], [0, 1], 2)


def test_without_ackers_nothing_is_tracked_and_the_spout_is_acked_at_once(cluster_of):
    cluster = cluster_of(chain(feeding(1, 2), Pass(), Failing()), Config(ackers=0))
    cluster.advance_time(300)
    assert outcome(cluster) == ([1, 2], [], 0)
    assert sorted(cluster.read_tuples("b1")) == [[1], [2]]


@pytest.mark.parametrize("ackers", [1, 3])
def test_any_number_of_ackers_decides_the_same(cluster_of, ackers):
    class OddsFail(BasicBolt):
        def execute(self, tup, collector):
            if tup["x"] % 2:
                raise ValueError("odd")

    cluster = cluster_of(
        chain(feeding(*range(200)), Pass(), OddsFail(), parallelism=2), Config(ackers=ackers)
    )
    cluster.run_until_idle()
    assert outcome(cluster) == (list(range(0, 200, 2)), list(range(1, 200, 2)), 0)


class Configured(BasicBolt):
    output_fields = "told string"

    def prepare(self, config, context):
        places = (
            f"{context.topology} {context.component} {context.task_id} {context.task_index} of "
            f"{context.parallelism}"
        )
        around = f"from {context.sources} to {dict(context.targets)}"
        self.told = f"{places} {around}: {config['colour']} {config['message_timeout_secs']:.0f}"

    def execute(self, tup, collector):
        collector.emit([self.told])


def test_a_bolt_is_told_its_settings_and_its_place(cluster_of):
    builder = TopologyBuilder("settings", Config(message_timeout_secs=5, extra={"colour": "grey"}))
    builder.set_spout("s", feeding(1))
    builder.set_bolt("grey", Configured(), parallelism=2).all_grouping("s")
    builder.set_bolt("red", Configured(), config={"colour": "red"}).global_grouping("grey")
    builder.set_bolt("end", Silent()).shuffle_grouping("red")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    around = "from [('s', 'default')] to {'default': ['red']}"
    assert sorted(cluster.read_tuples("grey")) == [
        [f"settings grey 2 0 of 2 {around}: grey 5"],
        [f"settings grey 3 1 of 2 {around}: grey 5"],
    ]
    expected = "settings red 4 0 of 1 from [('grey', 'default')] to {'default': ['end']}: red 5"
    assert cluster.read_tuples("red") == [[expected], [expected]]


class Ticking(Bolt):
    """Emits the tuples that it has held since the last tick."""

    output_fields = "task int, held int"

    def prepare(self, config, context):
        self.task = context.task_id
        self.held = []

    def execute(self, tup, collector):
        if not tup.is_tick:
            self.held.append(tup)
            return
        assert (tup.source_component, tup.source_stream) == ("__system", "__tick")
        collector.emit([self.task, len(self.held)], self.held)
        for held in (*self.held, tup):
            collector.ack(held)
        self.held = []


def test_each_task_has_a_tick_each_period_also_while_no_message_flows(cluster_of):
    feeder = feeding(1, 2, 3)
    builder = TopologyBuilder("ticks")
    builder.set_spout("s", feeder)
    builder.set_bolt(
        "ticking", Ticking(), parallelism=2, config={"tick_tuple_freq_secs": 10}
    ).global_grouping("s")
    builder.set_bolt("other", Pass()).global_grouping("s")
    cluster = cluster_of(builder.build())
    cluster.advance_time(9.999)
    assert outcome(cluster) == ([], [], 3)
    cluster.advance_time(0.001)
    assert outcome(cluster) == ([1, 2, 3], [], 0)
    feeder.feed([4], 4)
    cluster.advance_time(50)
    assert cluster.acked("s") == [1, 2, 3, 4]
    first = 2
    second = 3
    assert [held for task, held in cluster.read_tuples("ticking") if task == first] == [
        3,
        1,
        0,
        0,
        0,
        0,
    ]
    assert [held for task, held in cluster.read_tuples("ticking") if task == second] == [0] * 6
    assert len(cluster.read_tuples("other")) == 4
