"""When a query has ended, as the driver sees it."""

from dataclasses import dataclass

import pytest

from spark_jobs.query import RunningQuery


@dataclass
class Query:
    """As much of Spark's as is looked at."""

    isActive: bool  # noqa: N815 - Spark's name
    error: Exception | None

    def exception(self):
        return self.error


@pytest.mark.parametrize(
    ("active", "error", "works"),
    [
        (True, None, True),
        (False, None, False),
        (False, RuntimeError("stage failure"), False),
        # Spark's clean-up after the fault failed too (a Python process was gone), and it never says that the query has ended.
        (True, RuntimeError("stage failure"), False),
    ],
)
def test_a_query_with_a_fault_has_ended_whatever_spark_calls_it(active, error, works):
    assert RunningQuery(Query(active, error)).active is works
