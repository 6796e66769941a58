"""A bolt's life: prepared before its first tuple, a copy for each task, cleaned up at the end."""

import re
from collections import Counter

from tests.semantics.components import chain, feeding, outcome
from tests.support.reasons import unplaced
from tiercel import BasicBolt, Bolt, TopologyBuilder


class Living(BasicBolt):
    """Logs its life, in a file for each copy."""

    transient = frozenset({"diary"})

    def __init__(self, folder):
        self.folder = folder

    def prepare(self, config, context):
        self.diary = (
            self.folder / f"{context.task_id}-{len(list(self.folder.iterdir()))}-{id(self)}"
        )
        self.write("prepare")

    def execute(self, tup, collector):
        self.write("execute")

    def flush(self, collector):
        self.write("flush")

    def cleanup(self):
        self.write("cleanup")

    def write(self, word):
        with self.diary.open("a") as file:
            file.write(f"{word} ")


def test_each_task_is_a_copy_prepared_first_flushed_after_its_input_and_cleaned_up_last(
    cluster_of, tmp_path
):
    feeder = feeding(*range(20))
    builder = TopologyBuilder("living")
    builder.set_spout("s", feeder)
    builder.set_bolt("b1", Living(tmp_path), parallelism=2).fields_grouping("s", "x")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert cluster.acked("s") == list(range(20))
    feeder.feed([99], 99)
    cluster.run_until_idle()
    cluster.close()
    diaries = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert {name.split("-")[0] for name in diaries} == {"2", "3"}
    words = Counter(word for diary in diaries.values() for word in diary)
    # A slow machine may cut the first input of a task into two steps.
    assert words["execute"] == 21
    assert words["flush"] >= 3
    for diary in diaries.values():
        assert re.fullmatch("prepare(( execute)+ flush)+ cleanup", " ".join(diary))


class Total(BasicBolt):
    output_fields = "n long"

    def __init__(self):
        self.n = 0

    def execute(self, tup, collector):
        self.n += 1
        collector.emit([self.n])


def test_a_task_is_one_object_over_all_steps(cluster_of):
    feeder = feeding()
    cluster = cluster_of(chain(feeder, Total()))
    for number in range(3):
        feeder.feed([number], number)
        feeder.feed([number], number)
        cluster.run_until_idle()
    assert cluster.read_tuples("b1") == [[1], [2], [3], [4], [5], [6]]


class Unprepared(Bolt):
    def prepare(self, config, context):
        raise OSError("no disk")


def test_a_bolt_that_cannot_be_prepared_fails_its_tuples(cluster_of):
    cluster = cluster_of(chain(feeding(1, 2), Unprepared()))
    cluster.run_until_idle()
    assert outcome(cluster) == ([], [1, 2], 0)
    assert set(map(unplaced, cluster.fail_reasons("s"))) == {"b1[2]: prepare: OSError: no disk"}
