"""Which tests `make test` takes, and which it leaves to `make test-all`: the one rule.

Each test is *quick* or *rest*, and is marked so when it is collected: `pytest -m quick`,
`pytest -m rest`. Its folder decides. A test that differs from its folder has its own mark,
`@pytest.mark.quick` or `@pytest.mark.rest`:

* among tests of whole topologies and of faults, one of each kind is quick: the test that has found
  the most bugs, or takes the least time;
* elsewhere, a test that takes as long as a hundred others is rest if a quick one covers the same
  at small scale.

Of the whole topologies and faults, only `make test-matrix` runs the *slow* ones, before a release:
a test that takes as long as ten others and whose subject another one has too, of the rest or at
smaller scale a quick one, in other words the second of each kind.

A test that measures seconds, such as the time until a topology goes on or its rate then, is marked
as `alone`: nothing runs beside it. The other rest tests run three files at a time: two, and one
whose tests mostly wait (`waits`).

`make test-newest` runs the *newest* tests again on other versions of the servers: by folder, the
tests of the parts that send commands to RabbitMQ and Redis, and every contract; all other parts
reach a server only through these. A test elsewhere that depends on a server's behaviour has
`@pytest.mark.newest`. A test that uses none of the chosen servers is left out: a memory twin, and a
cluster, which is always embedded.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePath

QUICK = "quick"
REST = "rest"
BY_FOLDER = {
    "unit": QUICK,
    "integration": QUICK,
    "semantics": QUICK,
    "acceptance": REST,
    "faults": REST,
}
# Folders with tests marked as slow, which only `make test-matrix` runs.
SLOW = ("integration", "acceptance", "faults")
# Mark and folder of the tests that `make test-faults` runs.
ALONE = "alone"
MEASURED = "faults"
NEWEST = "newest"
SEND_COMMANDS = (
    "integration/acker",
    "integration/images",
    "integration/queues",
    "integration/spark_jobs/state",
)
# Places of contracts that use no chosen server.
ON_NO_CHOSEN_SERVER = ("memory", "redis cluster")
# Files of the rest whose tests wait more than they work: for a time limit, a back-off, an alert.
WAIT = (
    "acceptance/test_alerts.py",
    "acceptance/test_control.py",
    "acceptance/test_joining.py",
    "acceptance/test_limits.py",
    "acceptance/test_orders.py",
    "acceptance/test_outages.py",
    "acceptance/test_pause.py",
    "acceptance/test_rebalance.py",
    "acceptance/test_retries.py",
    "acceptance/test_retry_later.py",
    "acceptance/test_run_ends.py",
    "acceptance/test_run_keeps.py",
    "acceptance/test_slow.py",
    "acceptance/test_standing.py",
    "acceptance/test_unfit_executors.py",
    "integration/queues/test_long_faults.py",
    "integration/queues/test_retry_later.py",
    "integration/workers/test_prefetch.py",
)
# If several processes share the tests, files of folders with long tests begin first.
LONGEST_FIRST = ["faults", "acceptance", "semantics", "integration", "unit"]


def chosen(folder: str, marks: Collection[str]) -> str:
    """Return `quick` or `rest` for a test in this folder of `tests` with these marks.

    Raises ValueError if it has both marks, if the folder is unknown, or if no target would run it.
    """
    if "slow" in marks and folder not in SLOW:
        raise ValueError(
            f"no target runs slow tests of tests/{folder}: take the mark away, or the test"
        )
    if ALONE in marks and folder != MEASURED:
        raise ValueError(f"a target takes what runs alone from tests/{MEASURED} only")
    own = {QUICK, REST}.intersection(marks)
    if len(own) == 2:
        raise ValueError("it is marked as quick and as of the rest: take one mark away")
    if folder not in BY_FOLDER:
        raise ValueError(
            f"tests/support/choice.py does not say whether tests in tests/{folder} are quick"
        )
    return own.pop() if own else BY_FOLDER[folder]


def asks_newest(path: PurePath) -> bool:
    """Tell whether a file of `tests` is run again on the newest servers, even without a mark."""
    contract = path.match("integration/*/test_*_contract.py")
    return contract or any(path.is_relative_to(folder) for folder in SEND_COMMANDS)


def waits(file: str) -> bool:
    """Tell whether the tests of a file, as `tests/acceptance/test_slow.py`, mostly wait."""
    return file.endswith(WAIT)


def on_chosen_servers(fixtures: Collection[str], places: Collection[object]) -> bool:
    """Tell whether a test uses servers that `--servers` chooses, by its fixtures and the places
    that it is parametrized with.
    """
    if any(str(place).startswith(ON_NO_CHOSEN_SERVER) for place in places):
        return False
    # A place requests its server only when it is made.
    return "servers" in fixtures or "request" in fixtures
