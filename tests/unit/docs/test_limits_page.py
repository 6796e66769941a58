"""The Python of docs/limits.md runs, on simulated time."""

from tests.support.pages import page, run_tests_of
from tiercel.acker.limits import Rate


def test_the_tests_of_the_page_pass(tmp_path):
    run_tests_of("limits.md", tmp_path, at_least=1)


def test_the_page_knows_the_most_of_a_minute():
    rate = Rate(permits=100)
    most = 60e6 / rate.interval_us + rate.depth_us / rate.interval_us
    assert f"a minute at 100/s has {most:,.0f} at most" in page("limits.md")
