"""Keys and values of a state as bytes."""

from __future__ import annotations

import json
import math
from enum import Enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.spark_jobs.errors import BadStateError
from tiercel.spark_jobs.state.encoding import (
    LARGEST_VALUE,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
PARTS = st.one_of(TEXTS, st.integers(), st.binary())
KEYS = st.one_of(PARTS, st.lists(PARTS, max_size=4).map(tuple))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS, st.binary()
)
NAMES = st.one_of(TEXTS, st.sampled_from(["$bytes", "$dict"]))
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(NAMES, inner, max_size=3))
)


@given(KEYS)
def test_a_key_comes_back_as_it_was(key):
    found = decode_key(encode_key(key))
    assert repr(found) == repr(key)


@given(KEYS, KEYS)
def test_different_keys_stay_different(one, other):
    assert (encode_key(one) == encode_key(other)) == (repr(one) == repr(other))


@given(VALUES)
def test_a_value_comes_back_as_it_was(value):
    assert repr(decode_value(encode_value(value))) == repr(value)


@given(VALUES)
def test_a_value_is_json_that_others_can_read(value):
    json.loads(encode_value(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (-(2**63), "-9223372036854775808"),
        ("the", '"the"'),
        ("où", '"où"'),
        (b"\xff", '{"$bytes":"/w=="}'),
        ([1, None, True, 0.5], "[1,null,true,0.5]"),
        ({"$bytes": "mine"}, '{"$dict":{"$bytes":"mine"}}'),
    ],
)
def test_what_is_stored_is_readable(value, text):
    assert encode_value(value).decode() == text


def test_floats_without_a_number_are_kept():
    assert decode_value(encode_value(math.inf)) == math.inf
    assert math.isnan(decode_value(encode_value(math.nan)))


class Colour(Enum):
    RED = 1


CYCLE: list = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (("a", 1), "it holds a tuple"),
        ([{"deep": {1, 2}}], "it holds a set"),
        ({1: "a"}, "it holds a dict with the key 1, which is no string"),
        (np.int64(3), "it holds an int64"),
        (Colour.RED, "it holds a Colour"),
        (object, "it holds a type"),
        ("half a pair \ud83e", "surrogates not allowed"),
        (CYCLE, "recursion"),
        (10**5000, "4300 digits"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_would_not_come_back_is_refused_with_the_reason(value, reason):
    with pytest.raises(
        BadStateError, match=rf"cannot be put into a state \(.*{reason}.*\): use None, bool"
    ):
        encode_value(value)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "it holds None"),
        (True, "it holds a bool"),
        (1.5, "it holds a float"),
        (("a", 1.5), "it holds a float"),
        (("a", ("b",)), "it holds a tuple"),
        (["a"], "it holds a list"),
        (np.int64(3), "it holds an int64"),
        ("\ud83e", "surrogates not allowed"),
    ],
)
def test_what_is_no_key_is_refused_with_the_reason(key, reason):
    with pytest.raises(
        BadStateError, match=rf"cannot be a key of a state \(.*{reason}.*\): use str, int, bytes"
    ):
        encode_key(key)


def test_a_value_that_is_too_large_for_one_call_of_redis_is_refused():
    text = "x" * (LARGEST_VALUE - 2)
    assert len(encode_value(text)) == LARGEST_VALUE
    with pytest.raises(BadStateError, match=r"takes 64 MiB: put it under several keys"):
        encode_value(text + "x")
