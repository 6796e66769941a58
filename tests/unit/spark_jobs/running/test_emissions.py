"""Emissions are restored from memory unchanged."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timezone
from decimal import Decimal
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.spark_jobs.running.once import PastEmission, pack_emissions, unpack_emissions

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    TEXTS,
    st.binary(max_size=200),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
)
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=4), st.dictionaries(TEXTS, TEXTS, max_size=3)
)
EMISSIONS = st.lists(
    st.builds(
        PastEmission,
        st.one_of(st.just("default"), TEXTS),
        st.lists(VALUES, max_size=5),
        st.one_of(st.none(), st.integers(0, 1 << 31)),
    ),
    max_size=4,
)
# Gaps between ascending positions, one per emission.
GAPS = st.lists(st.integers(0, 300), min_size=4, max_size=4)


def exactly(value):
    if isinstance(value, list):
        return [exactly(one) for one in value]
    return type(value), value.isoformat() if isinstance(value, date) else repr(value)


def placed(emissions, gaps):
    """Return the emissions with these gaps between their positions."""
    positions = accumulate(gap + (at > 0) for at, gap in enumerate(gaps))
    return [
        one._replace(position=position) for one, position in zip(emissions, positions, strict=False)
    ]


@given(EMISSIONS, GAPS)
def test_emissions_come_back_as_they_were(emissions, gaps) -> None:
    emissions = placed(emissions, gaps)
    found = unpack_emissions(pack_emissions(emissions))
    assert [(one.stream, one.task, one.position) for one in found] == [
        (one.stream, one.task, one.position) for one in emissions
    ]
    assert [exactly(one.values) for one in found] == [exactly(one.values) for one in emissions]


def test_a_word_and_its_count_need_few_bytes() -> None:
    assert len(pack_emissions([PastEmission("default", ["falcon", 17])])) == 9
    assert pack_emissions([]) == b""


def test_what_is_no_number_stays_none() -> None:
    [one] = unpack_emissions(pack_emissions([PastEmission("default", [math.nan, -math.inf])]))
    assert math.isnan(one.values[0])
    assert one.values[1] == -math.inf


def test_a_moment_of_another_zone_is_the_same_moment() -> None:
    moment = datetime(2026, 1, 2, 3, tzinfo=timezone.max)
    [one] = unpack_emissions(pack_emissions([PastEmission("default", [moment])]))
    assert one.values == [moment]


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j])
def test_a_value_of_no_stream_is_refused(value) -> None:
    with pytest.raises(TypeError, match="cannot be kept"):
        pack_emissions([PastEmission("default", [value])])


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_refused(packed) -> None:
    try:
        unpack_emissions(packed)
    except ValueError:
        return


# A list and a signaling NaN are no keys; a number is no stream name.
@pytest.mark.parametrize(
    "packed",
    [bytes([1 << 3, 8, 2, 7, 0, 0]), b"\x08\x08\x02\x09\x08sNaN\x00", bytes([1 << 3 | 4, 0x40, 0])],
)
def test_a_record_with_an_impossible_value_is_refused(packed) -> None:
    with pytest.raises(ValueError, match="not what a tuple emitted"):
        unpack_emissions(packed)


@given(EMISSIONS.filter(bool), GAPS, st.data())
def test_a_mutated_record_is_read_or_refused(emissions, gaps, data) -> None:
    packed = bytearray(pack_emissions(placed(emissions, gaps)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(packed) - 1))
        packed[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        packed = packed or bytearray(b"\x00")
    try:
        found = unpack_emissions(bytes(packed))
    except ValueError:
        return
    assert all(isinstance(one.stream, str) for one in found)


@given(EMISSIONS.filter(bool), GAPS, st.data())
def test_what_is_cut_off_is_not_read_as_something_else(emissions, gaps, data) -> None:
    packed = pack_emissions(placed(emissions, gaps))
    cut = data.draw(st.integers(0, len(packed) - 1))
    try:
        found = unpack_emissions(packed[:cut])
    except ValueError:
        return
    assert len(found) < len(emissions)


def test_dates_are_no_moments() -> None:
    [one] = unpack_emissions(
        pack_emissions([PastEmission("default", [date(2026, 1, 2), Decimal("1.50")])])
    )
    assert exactly(one.values) == exactly([date(2026, 1, 2), Decimal("1.50")])
