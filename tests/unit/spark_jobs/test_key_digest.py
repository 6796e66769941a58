"""Digests of keys: equal keys have the same digest in every process, other keys another."""

from __future__ import annotations

import numpy as np
import pytest

from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.errors import BadValuesError
from tiercel.spark_jobs.topology.grouping import key_digest

SCHEMA = Schema.parse("tenant string, n long, x double, body string")


def test_other_fields_do_not_count():
    digest = key_digest(SCHEMA, ["tenant", "n"])
    assert digest(["a", 1, 0.5, "x"]) == digest(["a", 1, 0.7, "y"])


def test_a_value_is_what_its_column_makes_of_it():
    digest = key_digest(SCHEMA, ["n"])
    assert len({digest(["", n, 0.0, ""]) for n in (1, np.int8(1), True, 1.0)}) == 1


def test_a_digest_is_the_same_in_every_process():
    assert key_digest(SCHEMA, ["tenant"])(["a", 1, 0.0, ""]).hex() == (
        "201a4c80af71080b7b7a66a1239fa0c3"
    )


def test_two_keys_have_two_digests():
    digest = key_digest(SCHEMA, ["tenant", "n"])
    keys = [(tenant, n) for tenant in (None, "", "None", "n", "a", "a\0") for n in (None, 0, 1, -1)]
    assert len({digest([*key, 0.0, ""]) for key in keys}) == len(keys)
    assert len({key_digest(SCHEMA, ["n"])(["", n, 0.0, ""]) for n in range(100_000)}) == 100_000


def test_a_value_that_is_none_of_its_column_s_harms_its_tuple():
    with pytest.raises(BadValuesError, match="cannot group by n"):
        key_digest(SCHEMA, ["n"])(["a", "one", 0.0, ""])
