"""Which tests are run a second time, and after which failures.

A test of a process, a container or a browser can fail although nothing is wrong with what it
tests: something took longer than its generous bound, or another process had taken the port. Such
a test is run once more, and the summary names it.

A test of `acceptance` is run again whatever it saw, for it looks at whole programs, and most of
what these print and show is Spark's, Docker's or the browser's. But a test that shows what tiercel
promises has one try at that: where nothing was late, a message that is missing is missing. Such are
`unit`, `semantics`, `faults`, and those that are marked as `promised`.
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
