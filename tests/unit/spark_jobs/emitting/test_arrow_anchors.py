"""Anchors are row numbers of the input; anything else is refused in one line."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.spark_jobs.emitting.arrow_collector import occurrences, read_anchors, read_rows
from tiercel.spark_jobs.errors import BadAnchorsError


@pytest.mark.parametrize(
    "anchors",
    [
        [2, 0, 2],
        (2, 0, 2),
        np.array([2, 0, 2]),
        np.array([2, 0, 2], np.uint8),
        pa.array([2, 0, 2], pa.uint64()),
        pa.chunked_array([[2, 0], [2]]),
        pd.Series([2, 0, 2]),
        pd.Index([2, 0, 2]),
    ],
    ids=lambda anchors: type(anchors).__name__,
)
def test_one_row_number_for_each_output_row(anchors: Any) -> None:
    given = read_anchors(anchors, 3, 3)
    assert (given.counts.tolist(), given.rows.tolist(), given.single) == (
        [1, 1, 1],
        [2, 0, 2],
        True,
    )


@pytest.mark.parametrize(
    "anchors",
    [
        [[2, 0], [1]],
        [np.array([2, 0]), [1]],
        pa.array([[2, 0], [1]]),
        pa.array([[9], [2, 0], [1]]).slice(1),
        pa.array([[2, 0], [1]], pa.large_list(pa.uint8())),
        pa.chunked_array([[[2, 0]], [[1]]]),
        pd.Series([[2, 0], [1]]),
    ],
    ids=lambda anchors: type(anchors).__name__,
)
def test_a_list_of_row_numbers_for_each_output_row(anchors: Any) -> None:
    given = read_anchors(anchors, 2, 3)
    assert (given.counts.tolist(), given.rows.tolist(), given.single) == ([2, 1], [2, 0, 1], False)


def test_a_fixed_number_of_anchors_for_each() -> None:
    given = read_anchors(pa.array([[0, 1], [2, 2]], pa.list_(pa.int64(), 2)), 2, 3)
    assert (given.counts.tolist(), given.rows.tolist()) == ([2, 2], [0, 1, 2, 2])


def test_no_tree_is_said_with_none() -> None:
    given = read_anchors(None, 2, 3)
    assert (given.counts.tolist(), given.rows.tolist()) == ([0, 0], [])


@pytest.mark.parametrize(
    "nothing", [[], np.zeros(0, np.int64), pa.array([], pa.list_(pa.int64())), None]
)
def test_no_output_rows_need_no_anchors(nothing: Any) -> None:
    given = read_anchors(nothing, 0, 3)
    assert (given.counts.tolist(), given.rows.tolist()) == ([], [])


@pytest.mark.parametrize(
    ("anchors", "message"),
    [
        (
            [0],
            (
                "there are 2 output rows and anchors for 1: give one row number for each "
                "output row, a list of row numbers"
            ),
        ),
        ([], "there are 2 output rows and anchors for 0"),
        ([0, 3], "there is no input row 3: its rows are 0 to 2"),
        ([-1, 0], "there is no input row -1"),
        (pa.array([0, (1 << 64) - 1], pa.uint64()), "there is no input row 18446744073709551615"),
        ([[0], [1, 3]], "there is no input row 3"),
        ([0, None], "output row 1 has null for an anchor"),
        ([None, None], "output row 0 has null for an anchor"),
        ([[0], None], "output row 1 has null for an anchor"),
        ([[0], [None]], "a list of anchors holds null"),
        ([[None], [None]], "a list of anchors holds null"),
        (
            [[0], []],
            (
                "output row 1 has an empty list of anchors: emit rows that are in no tree by "
                "themselves, with anchors=None"
            ),
        ),
        ([[], []], "output row 0 has an empty list of anchors"),
        (
            [True, False],
            r"a mask names no rows: give their numbers, pyarrow.compute.indices_nonzero\(mask\)",
        ),
        ([0.0, 1.0], "rows are named by whole numbers, not by double"),
        (pd.Series([0, None]), "by whole numbers, not by double|null for an anchor"),
        (["0", "1"], "rows are named by whole numbers, not by string"),
        (0, "0 names no rows"),
        (np.zeros((2, 2), np.int64), "names no rows"),
        ([0, [1]], "names no rows"),
    ],
)
def test_what_names_no_rows_is_refused_in_one_line(anchors: Any, message: str) -> None:
    with pytest.raises(BadAnchorsError, match=message) as caught:
        read_anchors(anchors, 2, 3)
    assert "\n" not in str(caught.value)


def test_where_there_are_no_rows_there_is_nothing_to_anchor_to() -> None:
    with pytest.raises(BadAnchorsError, match="there is no input row 0: there are no rows here"):
        read_anchors([0], 1, 0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, [1]), (np.int64(1), [1]), ([2, 0], [2, 0]), ([], []), (np.array([1, 1]), [1, 1])],
)
def test_rows_are_named_one_or_many(rows: Any, expected: list[int]) -> None:
    assert read_rows(rows, 3).tolist() == expected


@pytest.mark.parametrize("rows", [3, -1, [0, 3], [None], [[0]], True, [True], "0", None, 1.0])
def test_what_names_no_rows_to_fail_is_refused(rows: Any) -> None:
    with pytest.raises(BadAnchorsError):
        read_rows(rows, 3)


@given(st.lists(st.integers(0, 4)), st.booleans())
def test_equal_rows_are_numbered_in_order(rows: list[int], ascending: bool) -> None:
    rows = sorted(rows) if ascending else rows
    seen: Counter[int] = Counter()
    expected = []
    for row in rows:
        expected.append(seen[row])
        seen[row] += 1
    assert occurrences(np.array(rows, np.int64)).tolist() == expected
