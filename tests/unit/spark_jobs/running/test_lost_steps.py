"""A bolt task whose inbox has lost its last steps, though other servers have their effects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.inbox_cluster import InboxCluster
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import BasicBolt, StatefulBolt, TopologyBuilder
from tiercel.acker.inbox.memory import MemoryInbox
from tiercel.spark_jobs.process.host import pass_over
from tiercel.spark_jobs.running.attempt import Attempt

FIRST = 2


class Pass(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup["word"]])


class Count(StatefulBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        self.state.increment(tup["word"])
        collector.emit([tup["word"]])


class Ignore(BasicBolt):
    def execute(self, tup, collector):
        pass


def cluster_of(bolt: Any) -> InboxCluster:
    builder = TopologyBuilder("lost")
    builder.set_spout("spout", Source())
    builder.set_bolt("first", bolt).fields_grouping("spout", "word")
    builder.set_bolt("last", Ignore()).shuffle_grouping("first")
    return InboxCluster(builder.build())


def work(cluster: InboxCluster, attempt: Attempt, *words: str) -> list[int]:
    """Execute one step per word."""
    roots = []
    for word in words:
        roots += cluster.emit([[word]])
        assert attempt.turn()
    return roots


def failed_over(cluster: InboxCluster, *, sealed: bool) -> list[int]:
    """Let the first bolt's inbox lose some steps; return the roots that came after them."""
    attempt = cluster.attempt(FIRST)
    work(cluster, attempt, "a", "b")
    if not sealed:
        attempt._committer.finish()
    replica = copy.deepcopy(cluster.inboxes._boxes[FIRST])
    assert (replica.sealed is not None) is sealed
    work(cluster, attempt, "c", "d", "e")
    attempt._committer.finish()
    cluster.inboxes._boxes[FIRST] = replica
    return cluster.emit([["f"], ["g"]])


@pytest.mark.parametrize("sealed", [True, False], ids=["within a step", "between two"])
@pytest.mark.parametrize("bolt", [Pass, Count])
def test_it_goes_on_behind_them(bolt: Callable[[], Any], sealed: bool, caplog) -> None:
    cluster = cluster_of(bolt())
    roots = set(failed_over(cluster, sealed=sealed))
    done: set[int] = set()
    cluster.start()

    def all_done() -> bool:
        outcomes = cluster.outcomes(0.05)
        assert not outcomes.failed
        done.update(outcomes.acked, outcomes.released)
        return roots <= done

    try:
        wait_until(all_done, 10)
        wait_until(lambda: cluster.inboxes.figures([FIRST])[FIRST].tuples == 0, 10)
        done.clear()
        roots = set(cluster.emit([["h"]]))
        wait_until(all_done, 10)
    finally:
        cluster.stop()
    assert [task.error for task, _ in cluster.threads.values()] == [None, None]
    assert "has lost its last steps" in caplog.text


def test_an_attempt_that_is_at_work_meanwhile_begins_again(monkeypatch) -> None:
    cluster = cluster_of(Pass())
    replicas = {}
    finish = MemoryInbox._finish

    def copied(inbox: MemoryInbox, step: int) -> bool:
        if inbox._task == FIRST:
            replicas[step] = copy.deepcopy(cluster.inboxes._boxes[FIRST])
        return finish(inbox, step)

    monkeypatch.setattr(MemoryInbox, "_finish", copied)
    acked: set[int] = set()

    def all_acked(*roots: int) -> bool:
        acked.update(cluster.outcomes(0.05).acked)
        return acked.issuperset(roots)

    cluster.start()
    try:
        for step, word in enumerate("abc", start=1):
            roots = cluster.emit([[word]])
            wait_until(lambda roots=roots: all_acked(*roots), 10)
            wait_until(lambda step=step: step in replicas, 10)
        with cluster.inboxes._changed:
            replicas[2].last = cluster.inboxes._boxes[FIRST].last
            cluster.inboxes._boxes[FIRST] = replicas[2]
        [root] = cluster.emit([["d"]])
        wait_until(lambda: all_acked(root), 10)
    finally:
        cluster.stop()
    assert [task.error for task, _ in cluster.threads.values()] == [None, None]


def test_an_attempt_that_was_taken_over_has_lost_none() -> None:
    cluster = cluster_of(Pass())
    old = cluster.attempt(FIRST)
    new = cluster.attempt(FIRST)
    [root] = cluster.emit([["a"]])
    assert not pass_over(cluster.around, old.sender)
    cluster.work({FIRST: new, 3: cluster.attempt(3)})
    assert list(cluster.outcomes().acked) == [root]
