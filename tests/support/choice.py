"""Which tests `make test` takes, and which it leaves to `make test-all`: the one rule.

Each test is *quick* or of the *rest*, and is marked as what it is when it is collected:
`pytest -m quick`, `pytest -m rest`. Its folder decides. A test that is otherwise than its folder
says so itself, with `@pytest.mark.quick` or `@pytest.mark.rest`:

* of whole topologies and of faults, one of each kind is quick: the one that has found the most, or
  takes the least time;
* elsewhere a test that takes as long as a hundred others is of the rest, where a quick one shows
  the same in small.

A fault that is judged by seconds, as how soon a topology goes on or how fast it is then, is marked
as `alone`: of the rest, nothing runs beside it, and the others run two files at a time.

`make test-newest` runs tests again on other versions of the servers: the *newest*. They are those
of the parts that send commands to RabbitMQ and Redis, by folder, and every contract; the parts
above reach a server by these alone. A test elsewhere that shows how a server behaves says so
itself, with `@pytest.mark.newest`. A test that asks for none of the chosen servers is left out: a
memory twin, and a cluster, which is always embedded.
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
# Where `make test-matrix` takes tests that are marked as slow. It is the only one that takes them.
SLOW = ("integration", "faults")
# `make test-faults` takes these, and looks in this folder.
ALONE = "alone"
MEASURED = "faults"
NEWEST = "newest"
SEND_COMMANDS = (
    "integration/acker",
    "integration/images",
    "integration/queues",
    "integration/spark_jobs/state",
)
# Of each place that a contract holds in: they are on no chosen server.
ON_NO_CHOSEN_SERVER = ("memory", "redis cluster")
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
    """Tell whether a file of `tests` is run again on the newest servers, without a mark."""
    contract = path.match("integration/*/test_*_contract.py")
    return contract or any(path.is_relative_to(folder) for folder in SEND_COMMANDS)


def on_chosen_servers(fixtures: Collection[str], places: Collection[object]) -> bool:
    """Tell whether a test is on servers that `--servers` chooses: by the fixtures that it asks for,
    and the places that it is parametrized with.
    """
    if any(str(place).startswith(ON_NO_CHOSEN_SERVER) for place in places):
        return False
    # A place asks for its server when it is made.
    return "servers" in fixtures or "request" in fixtures
