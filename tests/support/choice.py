"""Which tests `make test` takes, and which it leaves to `make test-all`: the one rule.

Each test is *quick* or of the *rest*, and is marked as what it is when it is collected:
`pytest -m quick`, `pytest -m rest`. Its folder decides. A test that is otherwise than its folder
says so itself, with `@pytest.mark.quick` or `@pytest.mark.rest`:

* of whole topologies and of faults, one of each kind is quick: the one that has found the most, or
  takes the least time;
* elsewhere a test that takes as long as a hundred others is of the rest, where a quick one shows
  the same in small.
"""

from __future__ import annotations

from collections.abc import Collection

QUICK = "quick"
REST = "rest"
BY_FOLDER = {
    "unit": QUICK,
    "integration": QUICK,
    "semantics": QUICK,
    "acceptance": REST,
    "faults": REST,
}
# Where `make test-matrix` takes tests that are marked as slow. It is the only one that takes them.
SLOW = ("integration", "faults")
# Where several processes share the tests, those of a folder that takes long per file
# are begun first.
LONGEST_FIRST = ["faults", "acceptance", "semantics", "integration", "unit"]


def chosen(folder: str, marks: Collection[str]) -> str:
    """Return `quick` or `rest` for a test in this folder of `tests` that has these marks.

    Raises ValueError if it has both, if the folder is not known, or if no target would run it.
    """
    if "slow" in marks and folder not in SLOW:
        raise ValueError(
            f"no target runs slow tests of tests/{folder}: take the mark away, or the test"
        )
    own = {QUICK, REST}.intersection(marks)
    if len(own) == 2:
        raise ValueError("it is marked as quick and as of the rest: take one mark away")
    if folder not in BY_FOLDER:
        raise ValueError(
            f"tests/support/choice.py does not say whether tests in tests/{folder} are quick"
        )
    return own.pop() if own else BY_FOLDER[folder]
