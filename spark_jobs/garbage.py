"""How this process collects garbage: seldom, because what a tuple passes through is freed without."""

from __future__ import annotations

import gc

# Objects more than before, after which Python looks for garbage; 700 by default.
_THRESHOLD = 100_000


def spare_the_collector() -> None:
    """Take what there is now, imports above all, out of the collector's sight, and have it look for the rest less often.

    Each look walks all of pandas and pyarrow, and the thousands of tuples that are in work: a quarter of the time of a bolt
    that is given them one by one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
