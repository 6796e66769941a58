"""How this process collects garbage: seldom, because what a tuple passes through is freed without."""

from __future__ import annotations

import gc
from itertools import count

_THRESHOLD = 100_000
"""Objects more than before, after which Python looks for garbage; 700 by default."""
_tasks = count(1)


def spare_the_collector() -> None:
    """Take what there is now, imports above all, out of the collector's sight, and have it look for the rest less often.

    Spark's worker collects after every task, which walks all of pandas and pyarrow: three quarters of the CPU time of small
    batches. Within a task, and in a spout worker, each look walks the thousands of tuples that are in work: a quarter of the
    time of a bolt that is given them one by one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)


def task_ended() -> None:
    """``spare_the_collector`` again, after this process's first task, its second, fourth, eighth and so on.

    The first ones bring what stays and was not there before: pandas, which pyarrow imports with its first array, what bolts
    load when they are prepared, what they remember. Seldom enough that what was frozen and then died does not add up.
    """
    number = next(_tasks)
    if number & (number - 1) == 0:
        spare_the_collector()
