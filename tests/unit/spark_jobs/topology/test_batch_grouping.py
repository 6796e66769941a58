"""A batch is routed as its tuples would be one by one."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel import TopologyContext
from tiercel.acker.ids import mix
from tiercel.queues.values.python_values import TEXTS
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.errors import GroupingError
from tiercel.spark_jobs.topology.grouping import (
    AllTasks,
    Custom,
    Direct,
    Fields,
    Global,
    Grouping,
    LocalOrShuffle,
    NoGrouping,
    PartialKey,
    Shuffle,
    Stream,
    batch_chooser,
    rows_by_task,
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
DAYS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))  # noqa: DTZ001 - both kinds are wanted


def whole(bits: int) -> st.SearchStrategy[int]:
    # Few values, so that keys repeat, and the ends of the ranges.
    return st.integers(-3, 3) | st.sampled_from([-(1 << bits - 1), (1 << bits - 1) - 1])


VALUES = {
    "string": st.text(max_size=3),
    "binary": st.binary(max_size=3),
    "boolean": st.booleans(),
    "byte": whole(8),
    "short": whole(16),
    "int": whole(32),
    "long": whole(64),
    "float": st.floats(width=32),
    "double": st.floats() | st.sampled_from([0.0, -0.0]),
    "date": st.dates() | st.just(date(1, 1, 1)),
    "timestamp": DAYS.map(lambda moment: moment.replace(tzinfo=UTC)),
    "timestamp_ntz": DAYS,
    "decimal(9,2)": st.decimals(Decimal(-99), Decimal(99), places=2),
}
ALL_VALUES = {
    **VALUES,
    **{
        f"array<{name}>": st.lists(st.none() | values, max_size=2)
        for name, values in VALUES.items()
    },
    "map<string,string>": st.dictionaries(
        st.text(max_size=2), st.none() | st.text(max_size=2), max_size=2
    ),
    "array<array<long>>": st.lists(st.lists(whole(64), max_size=2), max_size=2),
}


class BySize:
    """Chooses some tasks or none, by the null values and the lengths of the others."""

    def prepare(self, context, stream, target_tasks):
        self.tasks = target_tasks

    def choose_tasks(self, task_id, values):
        assert isinstance(values, tuple)
        size = sum(
            len(value) if isinstance(value, (str, bytes, list, dict)) else value is not None
            for value in values
        )
        return self.tasks[: size % (len(self.tasks) + 1)]


def groupings(names: list[str]) -> st.SearchStrategy[Grouping]:
    fixed = [Shuffle(), NoGrouping(), LocalOrShuffle(), AllTasks(), Global(), Custom(BySize())]
    if not names:
        return st.sampled_from(fixed)
    keys = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True).map(tuple)
    return st.sampled_from(fixed) | keys.map(Fields) | keys.map(PartialKey)


@st.composite
def emissions(draw):
    """Draw a schema, rows with identities, a grouping and a number of tasks."""
    types = draw(st.lists(st.sampled_from(sorted(ALL_VALUES)), min_size=1, max_size=3))
    names = [f"f{number}" for number in range(len(types))]
    schema = Schema.parse(
        ", ".join(f"{name} {type_}" for name, type_ in zip(names, types, strict=True))
    )
    rows = draw(
        st.lists(st.tuples(*(st.none() | ALL_VALUES[type_] for type_ in types)), max_size=12)
    )
    identities = draw(
        st.lists(st.integers(0, (1 << 64) - 1), min_size=len(rows), max_size=len(rows))
    )
    keys = [field.name for field in schema.fields if field.arrow != TEXTS]
    return schema, rows, identities, draw(groupings(keys)), draw(st.integers(1, 5))


def stream_of(schema: Schema, tasks: int) -> Stream:
    return Stream(
        schema=schema,
        tasks=range(11, 11 + tasks),
        name="default",
        context=CONTEXT,
        local=frozenset({12, 14, 99}),
    )


@given(emissions())
def test_each_row_goes_to_the_tasks_that_its_tuple_would_go_to(emission) -> None:
    schema, rows, identities, grouping, tasks = emission
    stream = stream_of(schema, tasks)
    choose = grouping.chooser(stream)
    expected: dict[int, list[int]] = {}
    for row, (values, identity) in enumerate(zip(rows, identities, strict=True)):
        for task in choose(values, identity):
            expected.setdefault(task, []).append(row)
    chosen = batch_chooser(grouping, stream)(schema.batch(rows), np.array(identities, np.uint64))
    assert {task: found.tolist() for task, found in chosen.items() if len(found)} == expected


def test_a_batch_spreads_evenly_over_the_two_tasks_of_a_partial_key() -> None:
    grouping = PartialKey(("word",))
    schema = Schema.parse("word string")
    identities = np.array([mix(number) for number in range(100_000)], np.uint64)
    batch = schema.batch([["same"]] * len(identities))
    chosen = batch_chooser(grouping, stream_of(schema, 2))(batch, identities)
    assert sorted(chosen) == [11, 12]
    assert all(49_000 <= len(rows) <= 51_000 for rows in chosen.values())


def test_many_keys_of_two_fields_are_told_apart() -> None:
    schema = Schema.parse("a string, n long")
    rows = [[f"word{number % 300}", number // 300] for number in range(30_000)]
    chosen = batch_chooser(Fields(("a", "n")), stream_of(schema, 3))(
        schema.batch(rows), np.zeros(30_000, np.uint64)
    )
    assert all(9_500 <= len(found) <= 10_500 for found in chosen.values())


def test_a_custom_grouping_that_chooses_a_stranger_is_refused_here_too() -> None:
    class Stranger(BySize):
        def choose_tasks(self, task_id, values):
            return [99]

    schema = Schema.parse("word string")
    choose = batch_chooser(Custom(Stranger()), stream_of(schema, 2))
    with pytest.raises(GroupingError, match="chose task 99; choose among 11, 12"):
        choose(pa.record_batch({"word": ["a"]}), np.zeros(1, np.uint64))


def test_a_direct_stream_is_not_chosen_for() -> None:
    with pytest.raises(GroupingError, match="is direct: use emit_direct"):
        batch_chooser(Direct(), stream_of(Schema.parse("word string"), 2))


@given(st.lists(st.integers(5, 9)))
def test_rows_are_sorted_to_the_tasks_that_are_named(tasks: list[int]) -> None:
    found = {task: rows.tolist() for task, rows in rows_by_task(np.array(tasks, np.int64)).items()}
    assert found == {
        task: [row for row, one in enumerate(tasks) if one == task] for task in Counter(tasks)
    }
