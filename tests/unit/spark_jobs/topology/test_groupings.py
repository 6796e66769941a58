"""Groupings spread evenly, and choose the same task in every process, whatever came before."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import permutations
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tiercel import TopologyContext
from tiercel.acker.ids import line_of, mix, seed
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.errors import BadValuesError, GroupingError
from tiercel.spark_jobs.topology.grouping import (
    AllTasks,
    Choose,
    Custom,
    Fields,
    Global,
    Grouping,
    LocalOrShuffle,
    NoGrouping,
    PartialKey,
    Shuffle,
    Stream,
    key_hash,
)

CONTEXT = TopologyContext(
    topology="t",
    component="source",
    task_id=3,
    task_index=0,
    parallelism=1,
    sources=[],
    targets={"default": ["bolt"]},
)
EAST = timezone(timedelta(hours=5))


def chooser(
    grouping: Grouping,
    ddl: str = "word string",
    tasks: int = 4,
    local: AbstractSet[int] = frozenset(),
) -> Choose:
    stream = Stream(
        schema=Schema.parse(ddl),
        tasks=range(11, 11 + tasks),
        name="default",
        context=CONTEXT,
        local=local,
    )
    return grouping.chooser(stream)


@pytest.mark.parametrize(
    "grouping", [Shuffle(), NoGrouping(), LocalOrShuffle()], ids=lambda grouping: grouping.name
)
def test_a_shuffle_names_the_line_that_the_tasks_share(grouping: Grouping) -> None:
    choose = chooser(grouping, tasks=2)
    line = line_of([11, 12])
    assert {choose(["same"], mix(number)) for number in range(1_000)} == {(line,)}
    assert line in grouping.receivers([11, 12])


@pytest.mark.parametrize(
    "grouping", [Shuffle(), NoGrouping(), LocalOrShuffle()], ids=lambda grouping: grouping.name
)
def test_a_bolt_of_one_task_needs_no_line(grouping: Grouping) -> None:
    assert chooser(grouping, tasks=1)(["same"], 7) == (11,)
    assert list(grouping.receivers([11])) == [11]


def test_local_tasks_are_named_each_as_often_as_the_others() -> None:
    choose = chooser(LocalOrShuffle(), local={12, 13})
    spread = Counter(choose(["same"], mix(number))[0] for number in range(100_000))
    assert sorted(spread) == [12, 13]
    assert all(49_000 <= count <= 51_000 for count in spread.values())


def test_a_local_task_is_chosen_by_the_identity_and_not_by_turns() -> None:
    choose = chooser(LocalOrShuffle(), local={12, 13})
    assert [choose(["a"], mix(7)) for _ in range(9)] == [choose(["b"], mix(7))] * 9


def test_equal_values_go_to_one_task_in_every_process() -> None:
    code = (
        "from tiercel.queues.values.schema import Schema;"
        "from tiercel.spark_jobs.topology.grouping import key_hash;"
        "h = key_hash(Schema.parse('word string, n long'), ['word', 'n']); print([h([w, 1]) for w "
        "in ('a', 'ü', '')])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(runs) == 1


def test_the_hash_is_the_one_that_running_topologies_have_used() -> None:
    words = key_hash(Schema.parse("word string"), ["word"])
    assert [words([word]) for word in ("", "the", "falcon", "Turmfalke", "隼", None)] == [
        3468978357,
        4075001895,
        952704930,
        250958059,
        1057055605,
        1305470561,
    ]
    typed = key_hash(
        Schema.parse("n long, x double, b binary, t boolean, d date, a array<int>"), list("nxbtda")
    )
    assert typed([-5, 0.1, b"\x00", True, date(2024, 2, 29), [1, None]]) == 1508429425


@pytest.mark.parametrize(
    ("ddl", "equal"),
    [
        ("k long", [1, 1.0, np.int64(1), np.int8(1), Decimal(1)]),
        ("k int", [7, np.uint8(7), 7.0]),
        ("k double", [1, 1.0, np.float32(1), np.int64(1)]),
        ("k double", [0.0, -0.0, 0]),
        ("k float", [0.1, np.float32(0.1), float(np.float32(0.1))]),
        ("k boolean", [True, np.bool_(True)]),
        ("k string", ["a", np.str_("a")]),
        ("k binary", [b"a", bytearray(b"a"), memoryview(b"a")]),
        (
            "k timestamp",
            [datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 17, tzinfo=EAST)],
        ),
        ("k decimal(9,2)", [Decimal("1.5"), Decimal("1.50"), Decimal("1.5" + "0" * 500)]),
        ("k array<long>", [[1, 2], (1, 2), [1.0, np.int64(2)]]),
    ],
)
def test_what_the_column_calls_equal_goes_to_one_task_whichever_came_first(
    ddl: str, equal: list
) -> None:
    for order in permutations(equal) if len(equal) < 5 else [equal, equal[::-1]]:
        find = key_hash(Schema.parse(ddl), ["k"])
        assert len({find([value]) for value in order}) == 1


BERLIN = ZoneInfo("Europe/Berlin")
# Both are equal in Python: an hour apart where clocks are set back, and one moment on two days.
TWO_HOURS = [datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1)]
TWO_DAYS = [datetime(2026, 1, 2, 0, 30, tzinfo=EAST), datetime(2026, 1, 1, 19, 30, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("ddl", "equal"),
    [
        ("k timestamp", TWO_HOURS),
        ("k array<timestamp>", [(moment,) for moment in TWO_HOURS]),
        ("k date", TWO_DAYS),
    ],
)
@pytest.mark.parametrize("fields", [["k"], ["k", "n"]])
def test_datetimes_that_only_python_calls_equal_keep_their_tasks_whichever_came_first(
    ddl: str, equal: list, fields: list[str]
) -> None:
    assert equal[0] == equal[1]
    schema = Schema.parse(f"{ddl}, n long")
    found = []
    for order in (equal, equal[::-1]):
        find = key_hash(schema, fields)
        hashes = {repr(value): find([value, 1]) for value in order}
        assert hashes == {repr(value): find([value, 1]) for value in order}
        found.append(hashes)
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 2


@pytest.mark.parametrize("text", ["1.5", "20", "0", "-300", "0.1", "12345678901234567890"])
def test_equal_decimals_of_two_streams_go_to_one_task_whatever_their_scales(text: str) -> None:
    schemas = [Schema.parse(f"k decimal(38,{scale})") for scale in (1, 2, 18)]
    assert len({key_hash(schema, ["k"])([Decimal(text)]) for schema in schemas}) == 1


def test_a_key_is_told_from_its_neighbours() -> None:
    both = key_hash(Schema.parse("a string, b string"), ["a", "b"])
    assert (
        len(
            {
                both(pair)
                for pair in (["ab", "c"], ["a", "bc"], ["", "abc"], [None, "abc"], ["abc", None])
            }
        )
        == 5
    )


def test_none_is_a_key_like_others() -> None:
    choose = chooser(Fields(("word",)))
    assert choose([None], 1) == choose([None], 2)


def test_a_fields_grouping_looks_at_its_fields_only() -> None:
    choose = chooser(Fields(("word",)), "n long, word string")
    assert len({choose([n, "falcon"], mix(n))[0] for n in range(100)}) == 1


def test_many_keys_spread_over_all_tasks() -> None:
    choose = chooser(Fields(("word",)), tasks=5)
    spread = Counter(choose([f"word{number}"], 0)[0] for number in range(50_000))
    assert all(9_500 <= spread[task] <= 10_500 for task in range(11, 16))


def test_a_key_of_the_wrong_type_is_a_clear_error_whatever_is_remembered() -> None:
    choose = chooser(Fields(("n",)), "n long")
    for value in ("one", True):
        with pytest.raises(
            BadValuesError,
            match=r"cannot group by n: field 'n' is a long, the value is the (str|bool)",
        ):
            choose([value], 0)
    assert choose([1], 0) == chooser(Fields(("n",)), "n long")([1], 0)


def test_a_partial_key_uses_two_tasks_a_key_equally() -> None:
    choose = chooser(PartialKey(("word",)), tasks=5)
    for word in ("the", "falcon", "of"):
        spread = Counter(choose([word], mix(number))[0] for number in range(10_000))
        assert len(spread) == 2
        assert all(4_800 <= count <= 5_200 for count in spread.values())


def test_a_partial_key_spreads_its_pairs_over_all_tasks() -> None:
    choose = chooser(PartialKey(("word",)), tasks=5)
    spread = Counter(choose([f"word{number}"], mix(number))[0] for number in range(50_000))
    assert all(9_500 <= spread[task] <= 10_500 for task in range(11, 16))


def test_a_partial_key_over_one_task_takes_it() -> None:
    assert chooser(PartialKey(("word",)), tasks=1)(["a"], 1 << 63) == (11,)


def test_all_is_everyone_and_global_is_the_lowest() -> None:
    assert list(chooser(AllTasks())(["a"], 5)) == [11, 12, 13, 14]
    assert list(chooser(Global())(["a"], 5)) == [11]


class ByLength:
    prepared = None

    def prepare(self, context, stream, target_tasks):
        self.prepared = (context.component, stream, list(target_tasks))
        self.tasks = target_tasks

    def choose_tasks(self, task_id, values):
        return [self.tasks[len(word) % len(self.tasks)] for word in values]


class Fixed(ByLength):
    def __init__(self, *chosen):
        self.chosen = chosen

    def choose_tasks(self, task_id, values):
        return self.chosen


def test_a_custom_grouping_is_prepared_once_on_a_copy_of_its_own() -> None:
    mine = ByLength()
    choose = chooser(Custom(mine))
    assert [choose([word], 0) for word in ("a", "bb", "ccccc")] == [[12], [13], [12]]
    assert mine.prepared is None


def test_a_custom_grouping_may_choose_several_tasks_or_none_each_once() -> None:
    assert chooser(Custom(Fixed(12, 14, 12)))(["a"], 0) == [12, 14]
    assert chooser(Custom(Fixed()))(["a"], 0) == []


def test_a_custom_grouping_that_chooses_a_stranger_is_told_whom_it_may_choose() -> None:
    with pytest.raises(
        GroupingError,
        match="of stream 'default' of 'source' chose task 99; choose among 11, 12, 13, 14",
    ):
        chooser(Custom(Fixed(99)))(["a"], 0)


def test_seeds_of_the_tuples_of_one_tree_are_as_good_as_random_for_a_shuffle() -> None:
    choose = chooser(LocalOrShuffle(), local={12, 13})
    spread = Counter(choose([""], seed(42, edge))[0] for edge in range(100_000))
    assert all(49_000 <= count <= 51_000 for count in spread.values())
