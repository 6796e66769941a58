"""Output of an ArrowBolt becomes exactly the stream's columns, or a clear error.

No value changes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.emitting.arrow_collector import conform
from tiercel.spark_jobs.errors import BadValuesError

SCHEMA = Schema.parse("word string, n long")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "data",
    [
        pa.record_batch({"word": ["a", None], "n": [1, 2]}),
        pa.record_batch({"n": [1, 2], "word": ["a", None]}),
        pa.table({"word": pa.chunked_array([["a"], [None]]), "n": [1, 2]}),
        {"word": ["a", None], "n": np.array([1, 2], np.int8)},
        {"word": pa.array(["a", None], pa.large_string()), "n": pa.array([1, 2], pa.uint64())},
        {"word": pa.array(["a", None], pa.string_view()), "n": [1, 2]},
        {
            "word": pa.array(["a", None]).dictionary_encode(),
            "n": pa.array([1, 2]).dictionary_encode(),
        },
        pd.DataFrame({"word": ["a", None], "n": [1, 2]}),
        pd.DataFrame({"word": pd.Categorical(["a", None]), "n": np.array([1, 2], np.int16)}),
        pd.DataFrame({"word": ["a", "x", None], "n": [1, 0, 2]}).query("n > 0"),
        pa.record_batch({"word": ["x", "a", None], "n": [0, 1, 2]}).slice(1),
    ],
)
def test_columns_come_in_many_forms(data: Any) -> None:
    batch = conform(data, SCHEMA)
    assert batch.schema == SCHEMA.arrow
    assert batch.to_pydict() == {"word": ["a", None], "n": [1, 2]}


def test_no_rows_are_columns_too() -> None:
    for data in ({"word": [], "n": []}, SCHEMA.arrow.empty_table(), SCHEMA.batch([])):
        assert conform(data, SCHEMA).num_rows == 0


def test_columns_of_the_right_types_are_not_copied() -> None:
    batch = SCHEMA.batch([["a", 1]])
    assert (
        conform(batch, SCHEMA).column("n").buffers()[1].address
        == batch.column("n").buffers()[1].address
    )


@pytest.mark.parametrize(
    ("ddl", "given", "expected"),
    [
        ("x double", pa.array([1, 2]), [1.0, 2.0]),
        ("x double", pa.array([1.5], pa.float32()), [1.5]),
        ("x decimal(9,2)", pa.array([Decimal("1.5")]), [Decimal("1.50")]),
        ("x timestamp", pa.array([NOON], pa.timestamp("ns", "Europe/Berlin")), [NOON]),
        ("x timestamp", pa.array([NOON.replace(tzinfo=None)]), [NOON]),
        (
            "x timestamp_ntz",
            pa.array([NOON], pa.timestamp("s", "UTC")),
            [NOON.replace(tzinfo=None)],
        ),
        ("x date", pa.array([NOON.date()], pa.date64()), [NOON.date()]),
        ("x binary", pa.array([b"ab"], pa.binary(2)), None),
        (
            "x array<string>",
            pa.array([["a"], None, []], pa.large_list(pa.large_string())),
            [["a"], None, []],
        ),
        ("x array<long>", pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], [3, 4]]),
        ("x array<array<int>>", pa.array([[[1]], [[None], None]]), [[[1]], [[None], None]]),
        ("x array<string>", pa.array([None, None]), [None, None]),
        ("x array<string>", pa.array([[None], []]), [[None], []]),
        (
            "x map<string,string>",
            pa.array([{"a": "b"}, None], pa.map_(pa.large_string(), pa.large_string())),
            [[("a", "b")], None],
        ),
        ("x map<string,string>", pa.array([None]), [None]),
        # As in a pandas frame of such a column.
        (
            "x map<string,string>",
            [[("a", "b"), ("c", None)], None, []],
            [[("a", "b"), ("c", None)], None, []],
        ),
        ("x map<string,string>", [None, []], [None, []]),
    ],
)
def test_a_column_of_the_same_kind_is_cast(
    ddl: str, given: pa.Array, expected: list | None
) -> None:
    if expected is None:
        with pytest.raises(
            BadValuesError, match=r"field 'x' is a binary, the column is fixed_size_binary\[2\]"
        ):
            conform({"x": given}, Schema.parse(ddl))
    else:
        assert conform({"x": given}, Schema.parse(ddl)).column("x").to_pylist() == expected


@pytest.mark.parametrize(
    ("ddl", "given", "message"),
    [
        ("x long", ["7"], "field 'x' is a long, the column is string"),
        ("x long", [7.0], "field 'x' is a long, the column is double"),
        ("x long", [True], "field 'x' is a long, the column is bool"),
        ("x decimal(9,2)", [7], r"field 'x' is a decimal\(9,2\), the column is int64"),
        ("x string", [7], "field 'x' is a string, the column is int64"),
        ("x string", [b"a"], "field 'x' is a string, the column is binary"),
        ("x date", [NOON], r"field 'x' is a date, the column is timestamp\[us, tz=UTC\]"),
        ("x timestamp", [NOON.date()], r"field 'x' is a timestamp, the column is date32\[day\]"),
        ("x array<long>", [1], "field 'x' is an array<long>, the column is int64"),
        ("x array<long>", [["a"]], "field 'x' is an array<long>, the column is list"),
        (
            "x array<long>",
            pa.array([[1]], pa.list_view(pa.int64())),
            "field 'x' is an array<long>, the column is list_view",
        ),
        (
            "x map<string,string>",
            pa.array([{"a": 1}], pa.map_(pa.string(), pa.int64())),
            "field 'x' is a map<string,string>, the column is map<string, int64>",
        ),
        (
            "x map<string,string>",
            pa.array([{1: "a"}], pa.map_(pa.int64(), pa.string())),
            "field 'x' is a map<string,string>, the column is map<int64, string>",
        ),
        ("x map<string,string>", [{"a": "b"}], "the column is struct<a: string>"),
        ("x map<string,string>", [[["a", "b", "c"]]], "a list in the column has no pairs of texts"),
        ("x map<string,string>", [[[None, "b"]]], "a list in the column has no pairs of texts"),
        (
            "x int",
            [1 << 31],
            "field 'x' is an int, the column is int64: Integer value 2147483648 not in range",
        ),
        (
            "x long",
            pa.array([1 << 63], pa.uint64()),
            "field 'x' is a long, the column is uint64: Integer value 9223372036854775808",
        ),
        (
            "x double",
            [(1 << 60) + 1],
            "field 'x' is a double, the column is int64: Integer value 1152921504606846977",
        ),
        (
            "x timestamp",
            pa.array([1], pa.timestamp("ns")),
            r"the column is timestamp\[ns\]: .* would lose data",
        ),
        (
            "x timestamp",
            pa.array([1 << 62], pa.timestamp("us")),
            "field 'x' is a timestamp, and a value is not within the years",
        ),
        (
            "x date",
            pa.array([1 << 30], pa.date32()),
            "field 'x' is a date, and a value is not within the years 1 to 9999",
        ),
        (
            "x array<date>",
            pa.array([[1 << 30]], pa.list_(pa.date32())),
            "and a value is not within the years",
        ),
        (
            "x float",
            pa.array([float("inf"), 1e300]),
            "field 'x' is a float, the column is double: a number is too large for it",
        ),
        (
            "x array<struct<y float>>",
            pa.array([[{"y": -1e39}]], pa.list_(pa.struct([("y", pa.float64())]))),
            "a number is too large for it",
        ),
    ],
)
def test_a_column_that_would_change_is_refused(ddl: str, given: Any, message: str) -> None:
    with pytest.raises(BadValuesError, match=message):
        conform({"x": given}, Schema.parse(ddl))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"word": ["a"]}, r"the columns are word; give one for each of \(word string, n long\)"),
        ({}, "the columns are none; give one"),
        ({"word": ["a"], "n": [1], "more": [1]}, "the columns are word, n, more; give one"),
        ({"word": ["a"], "N": [1]}, "the columns are word, N; give one"),
        (
            pa.table([["a"], [1], [2]], names=["word", "n", "n"]),
            "the columns are word, n, n; give one",
        ),
        (
            pd.DataFrame({"word": ["a"], "n": [1]}, index=["i"]),
            "the columns are word, n, __index_level_0__; give one",
        ),
        (
            {"word": ["a", "b"], "n": [1]},
            (
                r"these are no columns for \(word string, n long\): .*expected length 2 but "
                r"got length 1"
            ),
        ),
        ({"word": [["a"], 3], "n": [1, 2]}, "these are no columns"),
        ({"word": "a", "n": 1}, "these are no columns"),
        (["a", 1], r"give a RecordBatch, .* not the list \['a', 1\]"),
        ("word", "not the str 'word'"),
        (None, "not the NoneType None"),
    ],
)
def test_what_is_no_columns_of_the_stream_is_refused_in_one_line(data: Any, message: str) -> None:
    with pytest.raises(BadValuesError, match=message) as caught:
        conform(data, SCHEMA)
    assert "\n" not in str(caught.value)


def test_text_that_is_none_is_refused_before_a_receiver_stumbles_over_it() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    with pytest.raises(BadValuesError, match=r"the columns are damaged: .*UTF8"):
        conform({"word": broken, "n": [1]}, SCHEMA)
