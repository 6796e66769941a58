"""Which tests are run a second time, and after which failures.

A test of a process, a container or a browser can fail although its subject is correct: something
took longer than its generous bound, or another process had taken the port. Such a test is run once
more, and the summary names it.

A test of `acceptance` is run again after any failure, because it checks whole programs, and most of
their output comes from Spark, Docker or the browser. A test that checks tiercel's promises has only
one try at them: if nothing was late, a missing message is lost. Such tests are `unit`, `semantics`,
`faults`, and those marked as `promised`.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

# As the plugin compares them: with "AssertionError: not within 30 s: the page".
OUT_OF_TIME = [
    r"not within [\d.]+ s: ",
    r"Timeout \(>[\d.]+s\)",
    r"Timeout \d+ms exceeded",
    r"^AssertionError: Locator expected to ",
    r"^(Timeout\w*|\w+Timeout): ",
    r"built-in function (monotonic|perf_counter)",
    "Address already in use",
]


def second_try(folder: str, marks: Collection[str]) -> pytest.MarkDecorator | None:
    """Return the mark of tests in this folder that may be run again; None if they may not."""
    if folder not in ("integration", "acceptance"):
        return None
    if folder == "acceptance" and "promised" not in marks:
        return pytest.mark.flaky(reruns=1)
    return pytest.mark.flaky(reruns=1, only_rerun=OUT_OF_TIME)
