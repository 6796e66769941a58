"""docs/bodies-and-retries.md: its tests pass, and it lists every option."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from tests.support.pages import page, run_tests_of
from tiercel import QueueSink, QueueSpout, RetryPolicy
from tiercel.queues.values.models import _FLAT as ANNOTATIONS
from tiercel.queues.values.schema import _FLAT

PAGE = page("bodies-and-retries.md")


def options(title: str) -> dict[str, str]:
    """Return the option and default of each row of a table of options."""
    [section] = re.findall(rf"^### {title}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", section, re.MULTILINE))


def test_the_tests_on_the_page_pass(tmp_path):
    run_tests_of("bodies-and-retries.md", tmp_path, at_least=3)


@pytest.mark.parametrize("kind", [QueueSpout, QueueSink])
def test_every_option_is_in_the_table_with_its_default(kind):
    parameters = dict(inspect.signature(kind).parameters)
    told = options(kind.__name__)
    assert list(told) == list(parameters)
    for name, default in told.items():
        real = parameters[name].default
        if isinstance(real, bool):
            assert default == f"`{real}`", name
        elif isinstance(real, int | float):
            assert default == f"{real:,g}", name


def test_every_option_of_the_policy_is_in_the_table():
    assert list(options("RetryPolicy")) == [field.name for field in dataclasses.fields(RetryPolicy)]
    assert RetryPolicy().first.total_seconds() == 0.2
    assert RetryPolicy().longest.total_seconds() == 10


def test_every_type_is_in_the_tables():
    synonyms = {"byte", "short", "integer", "bigint", "real"}
    assert [name for name in _FLAT if name not in synonyms and f"`{name}`" not in PAGE] == []
    assert [each.__name__ for each in ANNOTATIONS if f"`{each.__name__}`" not in PAGE] == []
