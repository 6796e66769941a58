"""Groupings: which task receives which tuple."""

import os
from collections import Counter, defaultdict
from functools import cache

import pytest

from tests.semantics.components import Split, Telling, feeding, outcome
from tests.support.reasons import unplaced
from tiercel import BasicBolt, TopologyBuilder
from tiercel.testing import LocalCluster

TASKS = 3
WORDS = [f"word{number}" for number in range(60)]
TIMES = 40


class Ends:
    """Sends every tuple to the first and the last task."""

    def prepare(self, context, stream, target_tasks):
        self.ends = [target_tasks[0], target_tasks[-1], target_tasks[0]]

    def choose_tasks(self, task_id, values):
        return self.ends


class Echo(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


def topology(source):
    """Build every grouping, over the output of the spout or of a bolt."""
    builder = TopologyBuilder("groupings")
    spout = feeding(fields="line string")
    for _ in range(TIMES):
        spout.feed([" ".join(WORDS)], "message")
    builder.set_spout("lines", spout)
    builder.set_bolt("words", Split(), parallelism=2).shuffle_grouping("lines")
    single = feeding(fields="word string")
    for _ in range(TIMES):
        for word in WORDS:
            single.feed([word], word)
    builder.set_spout("single", single)
    builder.set_bolt("shuffle", Telling(), TASKS).shuffle_grouping(source)
    builder.set_bolt("none", Telling(), TASKS).none_grouping(source)
    builder.set_bolt("local_or_shuffle", Telling(), TASKS).local_or_shuffle_grouping(source)
    builder.set_bolt("fields", Telling(), TASKS).fields_grouping(source, "word")
    builder.set_bolt("partial_key", Telling(), TASKS).partial_key_grouping(source, "word")
    builder.set_bolt("all", Telling(), TASKS).all_grouping(source)
    builder.set_bolt("global", Telling(), TASKS).global_grouping(source)
    builder.set_bolt("custom", Telling(), TASKS).custom_grouping(source, Ends())
    return builder.build()


@cache
def fields_of_another_run(source):
    """Return the tasks of each word by ``fields`` in another run: in memory, in this process."""
    with LocalCluster(topology(source)) as cluster:
        cluster.run_until_idle()
        return spread(cluster, "fields")


def spread(cluster, component):
    """Count the tuples of each word and task."""
    found = defaultdict(Counter)
    for task, _, _, _, word in cluster.read_tuples(component):
        found[word][task] += 1
    return found


@pytest.mark.parametrize("source", ["single", "words"], ids=["from a spout", "from a bolt"])
def test_every_grouping_reaches_the_tasks_that_it_promises(cluster_of, source):
    cluster = cluster_of(topology(source))
    cluster.run_until_idle()
    assert len(cluster.acked("single")) == len(WORDS) * TIMES
    assert outcome(cluster, "lines") == (["message"] * TIMES, [], 0)
    tasks = {
        component: list(topology(source).task_ids(component))
        for component in ("all", "global", "custom")
    }
    for component in ("shuffle", "none", "local_or_shuffle"):
        # Each tuple goes to one task: a free one, or one in the emitter's process.
        shares = spread(cluster, component)
        assert {word: had.total() for word, had in shares.items()} == dict.fromkeys(WORDS, TIMES)
    by_fields = spread(cluster, "fields")
    assert all(len(had) == 1 for had in by_fields.values())
    assert len({task for had in by_fields.values() for task in had}) == TASKS
    pairs = spread(cluster, "partial_key").values()
    assert all(len(had) == 2 for had in pairs)
    assert all(3 <= count <= 37 for had in pairs for count in had.values())
    assert all(had == dict.fromkeys(tasks["all"], TIMES) for had in spread(cluster, "all").values())
    assert all(had == {tasks["global"][0]: TIMES} for had in spread(cluster, "global").values())
    ends = [tasks["custom"][0], tasks["custom"][-1]]
    assert all(had == dict.fromkeys(ends, TIMES) for had in spread(cluster, "custom").values())
    assert all(
        had.total() == TIMES
        for component in ("fields", "partial_key")
        for had in spread(cluster, component).values()
    )
    assert by_fields == fields_of_another_run(source), (
        "another run, in other processes, chooses the same tasks"
    )


class Located(BasicBolt):
    """Emits the name of its process."""

    output_fields = "emitted long"

    def execute(self, tup, collector):
        collector.emit([os.getpid()])


class Arrived(BasicBolt):
    """Emits the process that a tuple came from, and the one it arrived in."""

    output_fields = "emitted long, arrived long"

    def execute(self, tup, collector):
        collector.emit([tup["emitted"], os.getpid()])


def test_local_or_shuffle_stays_in_the_process_that_emits(cluster_of):
    builder = TopologyBuilder("local")
    builder.set_spout("s", feeding(*range(100)))
    builder.set_bolt("first", Located(), parallelism=2).local_or_shuffle_grouping("s")
    builder.set_bolt("last", Arrived(), parallelism=4).local_or_shuffle_grouping("first")
    cluster = cluster_of(builder.build(), slots=2)
    cluster.run_until_idle()
    assert len(cluster.acked("s")) == 100
    assert len(cluster.read_tuples("last")) == 100
    assert [row for row in cluster.read_tuples("last") if row[0] != row[1]] == []


class Strange(Ends):
    def choose_tasks(self, task_id, values):
        if values[0] == "raise":
            raise LookupError("no task will do")
        return [99] if values[0] == "bad" else self.ends


def test_a_custom_grouping_that_chooses_a_stranger_or_raises_fails_the_tuple(cluster_of):
    builder = TopologyBuilder("strange")
    builder.set_spout("s", feeding("good", "bad", "raise", fields="word string"))
    builder.set_bolt("echo", Echo()).shuffle_grouping("s")
    builder.set_bolt("end", Telling(), parallelism=2).custom_grouping("echo", Strange())
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert outcome(cluster) == (["good"], ["bad", "raise"], 0)
    stranger, raised = map(unplaced, cluster.fail_reasons("s"))
    assert stranger == (
        "echo[2]: GroupingError: the grouping of stream 'default' of 'echo' chose task 99; choose "
        "among 3, 4"
    )
    assert raised == "echo[2]: LookupError: no task will do"
    assert sorted(row[0] for row in cluster.read_tuples("end")) == [3, 4]
