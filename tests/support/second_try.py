"""Which tests are run a second time when the machine was too slow for them, or in their way.

A test of a process, a container or a browser can fail although nothing is wrong with what it
tests: something took longer than its generous bound, or another process had taken the port. Such
a test is run once more, and the summary names it. One that saw something *wrong*, and any test of
what tiercel promises (`unit`, `semantics`, `faults`), has one try.
"""

from __future__ import annotations

import pytest

_FOLDERS = ("integration", "acceptance")
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


def second_try(folder: str) -> pytest.MarkDecorator | None:
    """Return the mark of tests in this folder that may be run again; None if they may not."""
    if folder not in _FOLDERS:
        return None
    return pytest.mark.flaky(reruns=1, only_rerun=OUT_OF_TIME)
