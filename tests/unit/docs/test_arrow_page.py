"""docs/arrow-bolts.md is a test module that passes."""

from tests.support.pages import page, run_tests_of
from tiercel import ArrowCollector


def test_the_tests_on_the_page_pass(tmp_path):
    run_tests_of("arrow-bolts.md", tmp_path, at_least=2)


def test_every_call_of_the_collector_is_on_the_page():
    calls = [
        name
        for name, value in vars(ArrowCollector).items()
        if not name.startswith("_") and callable(value)
    ]
    assert {"emit", "emit_direct", "fail"} <= set(calls)
    assert [name for name in calls if f"`{name}" not in page("arrow-bolts.md")] == []
