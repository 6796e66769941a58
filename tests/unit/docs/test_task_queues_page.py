"""The Python of docs/task-queues.md runs."""

from tests.support.pages import run_tests_of


def test_the_tests_of_the_page_pass(tmp_path):
    run_tests_of("task-queues.md", tmp_path, at_least=3)
