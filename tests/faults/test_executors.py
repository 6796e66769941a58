"""Executors and Python workers die at the worst moments of a step.

The cluster has two executors. A new one has twenty seconds until the driver begins a new run, which
other topologies that start beside it would take away.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.executions import Repeats
from tests.faults.numbered import EXECUTOR, PYTHON_WORKER, Order
from tests.faults.stack import Stack

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

MOMENTS = {
    "while the first bolt executes": Order.FIRST_BOLT,
    "after its acks left": Order.ONCE_COMMITTED,
    "while the second bolt executes": Order.SECOND_BOLT,
}
SLOW = {
    (PYTHON_WORKER, "after its acks left"),
    (PYTHON_WORKER, "while the second bolt executes"),
    (EXECUTOR, "while the second bolt executes"),
}


@pytest.mark.parametrize(
    ("kill", "moment"),
    [
        pytest.param(kill, moment, marks=pytest.mark.slow if (kill, moment) in SLOW else ())
        for moment in MOMENTS
        for kill in (EXECUTOR, PYTHON_WORKER)
    ],
)
def test_a_process_is_killed(cluster: Stack, kill: str, moment: str) -> None:
    survives(cluster, f"Spark: {kill} killed {moment}", kill, MOMENTS[moment])


@pytest.mark.parametrize("kill", [pytest.param(EXECUTOR, marks=pytest.mark.quick), PYTHON_WORKER])
def test_a_process_is_killed_and_the_repeated_step_does_other_work(
    cluster: Stack, kill: str
) -> None:
    """The first attempt's effects count, and the messages are redelivered."""
    said = f"Spark: {kill} killed and the repeated step does other work"
    assert survives(cluster, said, kill, Order.THEN_KILL, Order.OTHER_WORK)["failed"] > 0


@pytest.mark.parametrize("kill", [EXECUTOR, pytest.param(PYTHON_WORKER, marks=pytest.mark.slow)])
def test_a_process_is_killed_late_and_all_repeated_steps_do_other_work(
    cluster: Stack, kill: str
) -> None:
    """The other tasks got tuples from it that differ from those it sends now.

    The ledger resolves the difference within the same run.
    """
    said = f"Spark: {kill} killed late in the second bolt, and all repeated steps do other work"
    with cluster.ordered(Order.UNSTEADY):
        survives(cluster, said, kill, Order.LATE_IN_THE_SECOND_BOLT)


def survives(cluster: Stack, said: str, kill: str, *orders: str) -> Counter[str]:
    """Survive within the same run, without repeating anything committed.

    Returns the spout's counts.
    """
    run = cluster.spark_run()
    before = cluster.counts()
    cluster.survives(said, lambda: cluster.carried_out(*orders, kill=kill))
    counts = cluster.counts() - before
    found = Repeats(cluster.folder, cluster.published)
    again_at = found.again_at(cluster.struck_at)
    again = (
        "nothing was repeated"
        if again_at is None
        else f"its step again after {again_at - cluster.struck_at:.1f} s"
    )
    print(  # noqa: T201
        f"{said}: {again}; repeated {len(found.first_repeated)} of the first bolt, "
        f"{len(found.repeated)} of the second; {len(found.strays)} that were committed; "
        f"{counts['timeout']} timeouts, {counts['failed']} failed"
    )
    assert cluster.spark_run() == run
    # A message that times out is redelivered; on an idle machine none does.
    assert len(found.strays) <= counts["timeout"]
    return counts
