"""Calls to a spout: the outcomes that it hears, and when it is asked for more."""

import threading
from collections import Counter
from types import MappingProxyType

from tests.semantics.components import Acking, Silent, Split, chain, outcome
from tiercel import Bolt, Config, Spout, TopologyBuilder


class ReliableSentenceSpout(Spout):
    """Keeps a map of pending tuples, and emits failed ones again."""

    output_fields = "sentence string"
    sentences = ("my dog has fleas", "bad", "don't have a cow man")

    def open(self, config, context):
        self.task = context.task_id
        self.pending = {}
        self.index = 0
        self.told, self.threads = [], set()

    def next_tuple(self, collector):
        self.collector = collector
        self.threads.add(threading.get_ident())
        if self.index < len(self.sentences):
            msg_id = (self.task, self.index)
            self.pending[msg_id] = [self.sentences[self.index]]
            collector.emit(self.pending[msg_id], msg_id=msg_id)
            self.index += 1

    def ack(self, msg_id):
        self.told.append(msg_id)
        del self.pending[msg_id]

    def fail(self, msg_id):
        self.told.append(msg_id)
        self.pending[msg_id] = [self.pending[msg_id][0].replace("bad", "good")]
        self.collector.emit(self.pending[msg_id], msg_id=msg_id)


class Careful(Split):
    def execute(self, tup, collector):
        if tup["sentence"] == "bad":
            raise ValueError("a bad word")
        super().execute(tup, collector)


def test_the_task_that_emitted_a_tuple_is_told_once_and_replays_what_failed(cluster_of):
    builder = TopologyBuilder("words")
    builder.set_spout("s", ReliableSentenceSpout(), parallelism=2)
    builder.set_bolt("split", Careful(), parallelism=2).shuffle_grouping("s")
    builder.set_bolt("end", Acking(), parallelism=2).fields_grouping("split", "word")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert Counter(cluster.acked("s")) == {
        (task, index): 1 for task in (1, 2) for index in range(3)
    }
    assert Counter(cluster.failed("s")) == {(1, 1): 1, (2, 1): 1}
    assert Counter(word for [word] in cluster.read_tuples("split"))["good"] == 2
    for index in (0, 1):
        spout = cluster.spout("s", index)
        assert spout.pending == {}
        assert Counter(spout.told) == {(spout.task, 0): 1, (spout.task, 1): 2, (spout.task, 2): 1}
        assert spout.threads == {threading.get_ident()}


class Stubborn(ReliableSentenceSpout):
    sentences = ("bad",)

    def fail(self, msg_id):
        self.collector.emit(self.pending[msg_id], msg_id=msg_id)


def test_a_replay_is_a_new_message_with_a_timeout_of_its_own(cluster_of):
    cluster = cluster_of(chain(Stubborn(), Silent()), Config(message_timeout_secs=30))
    cluster.advance_time(3 * 30 - 0.001)
    assert outcome(cluster) == ([], [(1, 0)] * 2, 1)
    cluster.advance_time(0.001)
    assert outcome(cluster) == ([], [(1, 0)] * 3, 1)
    assert len(cluster.read_tuples("s")) == 4


class Curious(Spout):
    """Records the outcomes that it hears, with reasons."""

    output_fields = "x long"

    def open(self, config, context):
        self.life = ["open"]
        self.left = [1, 2]

    def activate(self):
        self.life.append("activate")

    def next_tuple(self, collector):
        if self.left:
            self.life.append("emit")
            collector.emit([self.left[0]], msg_id=self.left.pop(0))

    def ack(self, msg_id):
        self.life.append(f"ack {msg_id}")

    def fail(self, msg_id, reason):
        self.life.append(f"fail {msg_id} {reason}")

    def release(self, msg_id):
        self.life.append(f"release {msg_id}")

    def deactivate(self):
        self.life.append("deactivate")

    def close(self, grace):
        self.life.append("close")


class OneFails(Bolt):
    """Fails tuple 1, holds tuple 2, acks the others."""

    def execute(self, tup, collector):
        if tup["x"] == 1:
            collector.fail(tup, "not one")
        elif tup["x"] != 2:
            collector.ack(tup)


def test_the_parts_of_a_spout_s_life_come_in_order_and_fail_has_the_reason(cluster_of):
    cluster = cluster_of(chain(Curious(), OneFails()))
    cluster.run_until_idle()
    spout = cluster.spout("s")
    cluster.close()
    failed = "fail 1 b1[2]: not one"
    assert spout.life == [
        "open",
        "activate",
        "emit",
        "emit",
        failed,
        "deactivate",
        "release 2",
        "close",
    ]


def test_a_deactivated_spout_is_not_asked_and_still_hears_of_its_tuples(cluster_of):
    cluster = cluster_of(chain(Curious(), OneFails()), Config(message_timeout_secs=30))
    spout = cluster.spout("s")
    cluster.step()
    cluster.deactivate()
    cluster.deactivate()
    spout.left.append(3)
    cluster.advance_time(29)
    assert spout.life[2:] == ["emit", "emit", "deactivate", "fail 1 b1[2]: not one"]
    cluster.advance_time(1)
    assert spout.life[-1] == "fail 2 timeout"
    assert outcome(cluster) == ([], [1, 2], 0)
    cluster.activate()
    cluster.run_until_idle()
    assert spout.life[-3:] == ["activate", "emit", "ack 3"]
    cluster.deactivate()
    cluster.close()
    assert spout.life[-2:] == ["deactivate", "close"]


def test_a_spout_names_the_task_on_a_direct_stream_and_may_emit_again_when_told_of_a_failure(
    cluster_of,
):
    class Dispatcher(Spout):
        output_streams = MappingProxyType({"default": "x long", "own": "x long"})
        direct_streams = frozenset({"own"})

        def open(self, config, context):
            self.chosen = context.component_tasks(context.targets["own"][0])
            self.left = 6

        def next_tuple(self, collector):
            self.collector = collector
            if self.left:
                self.left -= 1
                collector.emit_direct(
                    self.chosen[self.left % 3], [self.left], msg_id=self.left, stream="own"
                )

        def fail(self, msg_id):
            self.collector.emit([msg_id], msg_id=("again", msg_id))

    class Picky(Bolt):
        output_fields = "x long, task long"

        def prepare(self, config, context):
            self.task = context.task_id

        def execute(self, tup, collector):
            if tup.source_stream == "own":
                collector.emit([tup["x"], self.task], tup)
            if tup["x"] == 4 and tup.source_stream == "own":
                collector.fail(tup)
            else:
                collector.ack(tup)

    builder = TopologyBuilder("direct")
    builder.set_spout("s", Dispatcher())
    builder.set_bolt("picky", Picky(), parallelism=3).direct_grouping("s", "own").shuffle_grouping(
        "s"
    )
    topology = builder.build()
    first = topology.task_ids("picky")[0]
    cluster = cluster_of(topology)
    cluster.run_until_idle()
    assert sorted(cluster.read_tuples("picky")) == [[x, first + x % 3] for x in range(6)]
    assert sorted(cluster.read_tuples("s", "own")) == [[x] for x in range(6)]
    assert cluster.failed("s") == [4]
    assert set(cluster.acked("s")) == {0, 1, 2, 3, 5, ("again", 4)}
    assert cluster.pending("s") == 0


class Bulk(Spout):
    """Emits many tuples at a time, and hears many outcomes at a time."""

    output_fields = "x long"

    def open(self, config, context):
        self.life = []
        self.left = list(range(5))

    def next_tuples(self, collector, limit):
        taken = self.left[:limit]
        self.left = self.left[limit:]
        if taken:
            self.life.append(f"emit {taken}")
            collector.emit_all([[x] for x in taken], taken)

    def ack_all(self, msg_ids):
        self.life.append(f"ack {list(msg_ids)}")

    def expect(self, tuples):
        self.life.append(f"expect {tuples}")


def test_a_spout_of_many_tuples_is_asked_for_many_and_told_of_many(cluster_of):
    cluster = cluster_of(chain(Bulk(), Acking()), Config(max_spout_pending=3))
    cluster.run_until_idle()
    assert cluster.acked("s") == [0, 1, 2, 3, 4]
    assert cluster.spout("s").life == [
        "expect 0",
        "expect 3",
        "emit [0, 1, 2]",
        "ack [0, 1, 2]",
        "emit [3, 4]",
        "ack [3, 4]",
    ]


def test_what_a_spout_emits_while_it_is_deactivated_waits_until_it_is_active_again(cluster_of):
    class Again(Curious):
        def next_tuple(self, collector):
            self.collector = collector
            super().next_tuple(collector)

        def fail(self, msg_id, reason):
            super().fail(msg_id, reason)
            self.collector.emit([3], msg_id=("again", msg_id))

    cluster = cluster_of(chain(Again(), OneFails()))
    cluster.step()
    cluster.deactivate()
    cluster.run_until_idle()
    assert outcome(cluster) == ([], [1], 1)
    cluster.activate()
    cluster.run_until_idle()
    assert outcome(cluster) == ([("again", 1)], [1], 1)
