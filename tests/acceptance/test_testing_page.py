"""docs/testing.md is a test module that passes, including its tests on Spark."""

from tests.support.pages import page, run_tests_of
from tiercel import testing


def test_the_tests_on_the_page_pass(tmp_path):
    run_tests_of("testing.md", tmp_path, at_least=4)


def test_every_name_of_the_kit_is_on_the_page():
    assert [name for name in testing.__all__ if name not in page("testing.md")] == []
