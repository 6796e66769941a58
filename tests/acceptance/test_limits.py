"""Rate limits on the real stack: the benchmark at small scale, with bounds that hold on a busy
machine.
"""

import pytest

from bench import limited
from bench.rig import servers

pytestmark = [pytest.mark.timeout(600), pytest.mark.embedded]


@pytest.fixture(scope="module")
def settings():
    with servers() as found:
        yield found


def test_a_limit_over_four_tasks_is_kept_and_used(settings):
    found = limited.measure_rate(settings, 15.0)
    # Never more than the limit plus a bucket's savings; less on a busy machine.
    assert 85 <= found.percent <= 103


@pytest.mark.slow
def test_other_tenants_do_not_wait_beside_one_that_is_limited(settings):
    found = limited.measure_beside(settings, 2_000, 20, 10.0)
    assert found.messages >= 150
    assert found.p99_ms < 5_000, "behind the other tenant they would wait for half an hour"
    assert found.limited <= found.wall_s + 5
