"""Attempts at bolt tasks that die, are taken over, or wait: what is repeated and counted once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.inbox_cluster import RUN, InboxCluster
from tests.support.pump import Source, killed_after
from tiercel import BasicBolt, Bolt, Config, Topology, TopologyBuilder
from tiercel.acker.inbox.chunk import Chunk, Lineage, Parcel, Route, decode, encode
from tiercel.acker.inbox.contract import Bounds, Sender, StaleAttemptError
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.step import Step


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup["line"].split():
            collector.emit([word])


class Ignore(BasicBolt):
    def execute(self, tup, collector):
        pass


class Pairs(Bolt):
    """Joins two tuples into one, and holds the first until the second arrives."""

    output_fields = "both string"

    def prepare(self, config, context):
        self.first = None

    def execute(self, tup, collector):
        if self.first is None:
            self.first = tup
            return
        collector.emit([f"{self.first['line']}+{tup['line']}"], anchors=[self.first, tup])
        collector.ack(self.first)
        collector.ack(tup)
        self.first = None


class Ticked(BasicBolt):
    output_fields = "n long"

    def prepare(self, config, context):
        self.ticks = 0

    def execute(self, tup, collector):
        if tup.is_tick:
            self.ticks += 1
        else:
            collector.emit([self.ticks])


def topology(bolt: Any = None, **config: Any) -> Topology:
    """Two bolts, each with its own steps."""
    builder = TopologyBuilder("attempts", Config(chaining=False))
    builder.set_spout("spout", Source("line string"))
    builder.set_bolt("first", bolt or Split(), config=config).shuffle_grouping("spout")
    builder.set_bolt("last", Ignore()).shuffle_grouping("first")
    return builder.build()


FIRST = 2
LAST = 3


def words_in(cluster: InboxCluster, task: int) -> list[str]:
    """Return the words waiting in an inbox without taking them."""
    found = dict(cluster.inboxes.drain(RUN))
    chunks = [decode(entry.payload) for entry in found.get(task, [])]
    return [word for chunk in chunks for word in chunk.values.column(0).to_pylist()]


@pytest.mark.parametrize("effects", range(6))
def test_a_process_that_dies_anywhere_in_its_commit_is_repeated_and_counts_once(
    effects: int,
) -> None:
    cluster = InboxCluster(topology())
    roots = cluster.emit([["a b"], ["c"], ["d e f"]])
    with killed_after(effects):
        doomed = cluster.attempt(FIRST)
        while doomed.turn():
            continue
    successor = cluster.attempt(FIRST)
    cluster.work({FIRST: successor})
    assert sorted(words_in(cluster, LAST)) == ["a", "b", "c", "d", "e", "f"]
    cluster.work({LAST: cluster.attempt(LAST)})
    outcomes = cluster.outcomes()
    assert sorted(outcomes.acked) == sorted(roots)
    assert not outcomes.failed
    assert cluster.ledger.pending() == 0


def test_an_attempt_that_was_taken_over_changes_nothing_more() -> None:
    cluster = InboxCluster(topology())
    cluster.emit([["a b"]])
    old = cluster.attempt(FIRST)
    new = cluster.attempt(FIRST)
    with pytest.raises(StaleAttemptError):
        old.turn()
    assert words_in(cluster, LAST) == []
    cluster.work({FIRST: new})
    assert sorted(words_in(cluster, LAST)) == ["a", "b"]


def test_a_step_that_was_taken_over_in_the_middle_appends_and_acks_nothing() -> None:
    cluster = InboxCluster(topology())
    [root] = cluster.emit([["a b"]])
    old = cluster.attempt(FIRST)

    class TakenOver(Split):
        def execute(self, tup, collector):
            cluster.attempt(FIRST)
            super().execute(tup, collector)

    old._setup.copy.bolt = TakenOver()
    with pytest.raises(StaleAttemptError):
        old.turn()
    assert words_in(cluster, LAST) == []
    assert cluster.ledger.pending() == 1
    assert not cluster.outcomes()
    assert root


def test_a_held_tuple_outlives_its_process() -> None:
    cluster = InboxCluster(topology(Pairs()))
    [one] = cluster.emit([["one"]])
    cluster.work({FIRST: cluster.attempt(FIRST)})
    assert cluster.inboxes.figures([FIRST])[FIRST].tuples == 0
    [two] = cluster.emit([["two"]])
    cluster.work({FIRST: cluster.attempt(FIRST)})
    assert words_in(cluster, LAST) == ["one+two"]
    cluster.work({LAST: cluster.attempt(LAST)})
    assert sorted(cluster.outcomes().acked) == sorted([one, two])


def test_a_full_inbox_holds_its_sender_up_and_nothing_is_lost(monkeypatch) -> None:
    cluster = InboxCluster(topology(), Bounds(tuples=4, bytes=1 << 20))
    roots = cluster.emit([["a b c"]])
    first = cluster.attempt(FIRST)
    last = cluster.attempt(LAST)
    first.turn()
    roots += cluster.emit([["d e f"]])
    waits = []

    def make_room(seconds: float) -> None:
        waits.append(seconds)
        cluster.work({LAST: last})

    first._committer._wait = make_room
    first.turn()
    assert waits
    cluster.work({LAST: last, FIRST: first})
    assert sorted(cluster.outcomes().acked) == sorted(roots)


def test_a_chunk_of_another_version_of_the_topology_gives_its_messages_back(caplog) -> None:
    cluster = InboxCluster(topology())
    [good] = cluster.emit([["a"]])
    [root] = cluster.emit([["b"]])
    [(_, entries)] = cluster.inboxes.drain(RUN)
    chunk = decode(entries[1].payload)
    cluster.inboxes.discard(RUN, FIRST, [entries[1].position])
    other = Chunk(
        route=Route(component="spout", stream="default", source_task=1, target_task=FIRST),
        values=Schema.parse("amount long").batch([[5]]),
        lineage=Lineage(
            offsets=chunk.lineage.offsets, roots=chunk.lineage.roots, edges=chunk.lineage.edges
        ),
    )
    garbage = Parcel(target=FIRST, chunks=[encode(other), b"no chunk"], tuples=[1, 1])
    for effect in cluster.inboxes.append(RUN, Sender(task=99, attempt=1), 1, [garbage]):
        effect.perform()
    attempts = {FIRST: cluster.attempt(FIRST), LAST: cluster.attempt(LAST)}
    cluster.work(attempts)
    outcomes = cluster.outcomes()
    assert outcomes.acked == [good]
    assert outcomes.released == [root]
    assert cluster.inboxes.figures([FIRST])[FIRST].tuples == 0
    assert [record.event for record in caplog.records if "passes over" in record.message] == [
        "chunk_foreign",
        "chunk_unreadable",
    ]


def test_a_task_has_its_ticks_from_its_own_clock() -> None:
    cluster = InboxCluster(topology(Ticked(), tick_tuple_freq_secs=10.0))
    cluster.set_clock(0.0)
    attempt = cluster.attempt(FIRST)
    for now in (5.0, 10.0, 25.0, 29.0, 30.0):
        cluster.set_clock(now)
        cluster.work({FIRST: attempt})
    cluster.emit([["how many"]])
    cluster.work({FIRST: attempt})
    assert words_in(cluster, LAST) == [3], "one at 10, one for 20 at 25, one at 30"


def test_untracked_tuples_need_no_ledger() -> None:
    cluster = InboxCluster(topology())
    none = np.empty(0, np.uint64)
    chunk = Chunk(
        route=Route(component="spout", stream="default", source_task=1, target_task=FIRST),
        values=Schema.parse("line string").batch([["a b"]]),
        lineage=Lineage(offsets=np.zeros(2, np.int32), roots=none, edges=none),
    )
    [effect] = cluster.inboxes.append(
        RUN,
        Sender(task=1, attempt=1),
        1,
        [Parcel(target=FIRST, chunks=[encode(chunk)], tuples=[1])],
    )
    effect.perform()
    cluster.work({FIRST: cluster.attempt(FIRST)})
    assert sorted(words_in(cluster, LAST)) == ["a", "b"]


def test_a_task_without_other_work_reads_its_inbox_at_once_and_takes_two_steps_of_tuples() -> None:
    cluster = InboxCluster(topology())
    first = cluster.attempt(FIRST)
    wanted: list[int] = []
    take = first._inbox.take

    def noting(most: int, *others: Any, **named: Any) -> Any:
        wanted.append(most)
        return take(most, *others, **named)

    first._inbox.take = noting
    first._slices.found_none()
    assert not first.turn()
    assert wanted == [2 * first._slices.size]


def test_a_setting_of_the_topology_reaches_the_bolt() -> None:
    assert topology(Ticked(), tick_tuple_freq_secs=10.0).config_of("first") == Config(
        tick_tuple_freq_secs=10.0, chaining=False
    )


def test_no_kind_of_bolt_has_an_attempt_or_a_step_of_its_own() -> None:
    """``kinds.choice`` gives the parts that differ to the one ``Attempt``."""
    assert Attempt.__subclasses__() == []
    assert Step.__subclasses__() == []
