"""``local_or_shuffle_grouping`` chooses among tasks in the emitter's process, if it has any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from tests.support.pump import Pump, Source
from tiercel import ArrowBolt, BasicBolt, TopologyBuilder

COUNT = 300


class Pass(BasicBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


class PassAll(ArrowBolt):
    output_fields = "n long"

    def execute(self, batch, collector):
        collector.emit(batch, anchors=range(batch.num_rows))


class Telling(BasicBolt):
    """Reports which task received which tuples, and from which task."""

    had: ClassVar[Counter[tuple[int, int]]] = Counter()

    def prepare(self, config, context):
        self.task = context.task_id

    def execute(self, tup, collector):
        Telling.had[tup.source_task, self.task] += 1


def routes(
    middle: BasicBolt | ArrowBolt, hosts: Sequence[Sequence[int]]
) -> Counter[tuple[int, int]]:
    """Return the (source, target) of each tuple. The spout is task 1; the middle has tasks 2 and 3,
    the end 4, 5 and 6.
    """
    builder = TopologyBuilder("local")
    builder.set_spout("s", Source("n long"))
    builder.set_bolt("middle", middle, parallelism=2).fields_grouping("s", "n")
    builder.set_bolt("end", Telling(), parallelism=3).local_or_shuffle_grouping("middle")
    pump = Pump(builder.build())
    pump.around = replace(pump.around, hosts=hosts)
    pump.take_over()
    Telling.had.clear()
    roots = pump.feed(*([number] for number in range(COUNT)))
    pump.run()
    assert sorted(pump.acked) == sorted(roots)
    assert Telling.had.total() == COUNT
    return Telling.had.copy()


def goes_to_the_line(had: Counter[tuple[int, int]]) -> bool:
    """Return True if the first end task that asked took everything from both sources."""
    return set(had) == {(2, 4), (3, 4)}


@pytest.fixture(params=[Pass, PassAll], ids=["tuple by tuple", "whole batches"])
def middle(request: pytest.FixtureRequest) -> BasicBolt | ArrowBolt:
    return request.param()


def test_tuples_stay_in_the_process_that_emits_them(middle: BasicBolt | ArrowBolt) -> None:
    had = routes(middle, [(2, 4, 6), (3, 5)])
    assert set(had) == {(2, 4), (2, 6), (3, 5)}
    assert abs(had[2, 4] - had[2, 6]) < COUNT / 4, "evenly among those that are local"


def test_without_a_task_in_the_same_process_it_is_a_shuffle(middle: BasicBolt | ArrowBolt) -> None:
    assert goes_to_the_line(routes(middle, [(2, 3), (4, 5, 6)]))


def test_a_kit_without_processes_shuffles(middle: BasicBolt | ArrowBolt) -> None:
    assert goes_to_the_line(routes(middle, ()))
