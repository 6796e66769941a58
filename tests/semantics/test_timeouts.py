"""Timeouts of messages: never early, and reported once."""

from tests.semantics.components import Pass, Silent, chain, feeding, outcome
from tiercel import Bolt, Config

TIMEOUT = 30


def test_a_tuple_times_out_at_the_message_timeout_and_never_earlier(cluster_of):
    feeder = feeding(0)
    cluster = cluster_of(chain(feeder, Pass(), Silent()), Config(message_timeout_secs=TIMEOUT))
    cluster.advance_time(20)
    feeder.feed([1], 1)
    cluster.advance_time(9)
    for _ in range(9):
        cluster.advance_time(0.1)
    cluster.advance_time(0.099999)
    assert outcome(cluster) == ([], [], 2)
    cluster.advance_time(0.000001)
    assert outcome(cluster) == ([], [0], 1)
    cluster.advance_time(20 - 0.000001)
    assert cluster.pending("s") == 1, "the timeout begins when the tuple is emitted"
    cluster.advance_time(0.000001)
    assert outcome(cluster) == ([], [0, 1], 0)
    assert cluster.fail_reasons("s") == ["timeout", "timeout"]


class Late(Bolt):
    """Acks or fails an old tuple when the next one arrives."""

    def __init__(self):
        self.old = []

    def execute(self, tup, collector):
        if tup["x"] == 9:
            collector.ack(self.old[0])
            collector.fail(self.old[1], "too late")
            collector.ack(tup)
            self.old = []
        else:
            self.old.append(tup)


def test_what_a_bolt_says_after_the_timeout_is_not_told_again(cluster_of):
    feeder = feeding(1, 2)
    cluster = cluster_of(chain(feeder, Late()))
    cluster.advance_time(TIMEOUT)
    assert outcome(cluster) == ([], [1, 2], 0)
    feeder.feed([9], 9)
    cluster.run_until_idle()
    assert outcome(cluster) == ([9], [1, 2], 0)


class Resetting(Bolt):
    """Holds the first tuple, and resets its timeout at each later one."""

    def __init__(self):
        self.first = None

    def execute(self, tup, collector):
        if self.first is None:
            self.first = tup
        else:
            collector.reset_timeout(self.first)
            collector.ack(tup)


def test_a_timeout_that_is_reset_begins_again(cluster_of):
    feeder = feeding(1)
    cluster = cluster_of(chain(feeder, Resetting()))
    for number in (2, 3):
        cluster.advance_time(TIMEOUT - 1)
        feeder.feed([number], number)
        cluster.run_until_idle()
    cluster.advance_time(TIMEOUT - 1)
    assert outcome(cluster) == ([2, 3], [], 1)
    cluster.advance_time(1)
    assert outcome(cluster) == ([2, 3], [1], 0)


def test_without_message_timeouts_a_tuple_stays_pending_for_ever(cluster_of):
    cluster = cluster_of(chain(feeding(1), Silent()), Config(enable_message_timeouts=False))
    cluster.advance_time(1e9)
    assert outcome(cluster) == ([], [], 1)
