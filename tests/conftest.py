"""Servers and waiting for all tests.

A missing server is a failure, never a skip.

By default the servers are the embedded ones. ``--servers=rabbitmq:4.3,valkey:9.1`` uses containers
of these versions instead.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.images.engine import engine
from tests.support.broker import delete_queues
from tests.support.choice import (
    LONGEST_FIRST,
    NEWEST,
    asks_newest,
    chosen,
    on_chosen_servers,
)
from tests.support.docker_engine import all_must_run
from tests.support.lanes import PROCESSES, Lanes
from tests.support.replicas import ClusteredRedis
from tests.support.second_try import second_try
from tests.support.servers import (
    EMBEDDED,
    Servers,
    embedded_postgres,
    embedded_rabbitmq,
    embedded_redis,
    in_containers,
)
from tests.support.waiting import wait_until as _wait_until
from tiercel.acker.redis.errors import REFUSALS
from tiercel.compose import server as compose_server
from tiercel.compose.embedded import EmbeddedServices
from tiercel.compose.errors import ServiceError, ServiceMissingError
from tiercel.queues import outage
from tiercel.queues.broker import link

# A slow example only means that the machine is busy.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

_SERVERS = pytest.StashKey[Servers]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow", action="store_true", help="also the tests that only make test-matrix takes"
    )
    parser.addoption(
        "--soak-minutes", type=float, default=0.5, help="how long tests/faults/test_soak.py goes on"
    )
    parser.addoption("--soak-seed", type=int, help="repeats the faults of an earlier soak")
    parser.addoption(
        "--random-trees", type=int, default=100, help="number of trees in test_random_trees.py"
    )
    parser.addoption(
        "--fault-report",
        metavar="FILE",
        help="adds the table of the faults to this file, as Markdown",
    )
    parser.addoption(
        "--fault-rate",
        type=int,
        default=500,
        help="messages per second that faults are shown under",
    )
    parser.addoption(
        "--screenshots", metavar="FOLDER", help="write the pictures of the documentation there"
    )
    parser.addoption(
        "--servers",
        default="",
        help="containers to test with, as rabbitmq:4.3,valkey:9.1; default: embedded",
    )


@pytest.fixture(autouse=True)
def _no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test without an outage that an earlier test began or logged."""
    monkeypatch.setattr(outage, "REDIS", outage.Outage("Redis"))
    monkeypatch.setattr(link, "_outages", {})
    monkeypatch.setattr(REFUSALS, "_accepted", False)


def pytest_report_header(config: pytest.Config) -> str:
    return f"servers: {config.getoption('--servers') or 'embedded'}"


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker process its own range of ports, so that no other process takes the port of a
    server that is being started or restarted.
    """
    # Ten thousand tests are collected in half the time if the garbage collector walks them seldom.
    gc.set_threshold(100_000, 20, 20)
    given = getattr(config, "workerinput", None)
    if given is not None:
        count = given["workercount"]
        compose_server._CANDIDATES = compose_server._CANDIDATES[
            int(given["workerid"][2:]) % count :: count
        ]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    """With three processes, give files that wait to one of them."""
    return Lanes(config, log) if config.getoption("numprocesses") == PROCESSES else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _mark_choice(item)
    if hasattr(config, "workerinput"):
        # With several processes, run the long files first, so that no process ends with one while
        # the others are idle.
        items.sort(key=lambda item: LONGEST_FIRST.index(_folder(item)))
    others = "embedded" if config.getoption("--servers") else "containers"
    left_out = {item for item in items if item.get_closest_marker(others)}
    if config.getoption("--servers"):
        left_out |= {item for item in items if not _on_chosen_servers(item)}
    if not config.getoption("--slow"):
        left_out |= {item for item in items if item.get_closest_marker("slow")}
    if not config.getoption("--screenshots"):
        left_out |= {item for item in items if item.get_closest_marker("screenshots")}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _mark_choice(item: pytest.Item) -> None:
    """Mark a test as quick or as rest, as newest, and as one with a second try, for ``-m``."""
    marks = [mark.name for mark in item.iter_markers()]
    if _asks_newest(item.path):
        item.add_marker(NEWEST)
    again = second_try(_folder(item), marks)
    if again is not None:
        item.add_marker(again)
    try:
        item.add_marker(chosen(_folder(item), marks))
    except ValueError as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from None


def _on_chosen_servers(item: pytest.Item) -> bool:
    """Only integration tests may need no server; elsewhere whole topologies run on the servers."""
    if _folder(item) != "integration":
        return True
    places = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return on_chosen_servers(getattr(item, "fixturenames", ()), places)


def _folder(item: pytest.Item) -> str:
    return _folder_of(item.path)


# Each file has many tests.
@cache
def _folder_of(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).parts[0]


@cache
def _asks_newest(path: Path) -> bool:
    return asks_newest(path.relative_to(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons for second tries: the plugin names the tests, and pytest shows no more."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"run once more: {report.nodeid}", yellow=True)
        terminalreporter.write_line(report.longreprtext)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Get the images once for all processes, if there are several; each then finds them."""
    config = session.config
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        _find_servers(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get the images before the first test, because it may take minutes of that test's time."""
    # The garbage collector never walks the tests that were collected.
    gc.collect()
    gc.freeze()
    if session.items:
        _find_servers(session.config)


def _find_servers(config: pytest.Config) -> None:
    names = config.getoption("--servers")
    if not names or config.option.collectonly:
        return
    try:
        engine().close()
    except ServiceMissingError as error:
        pytest.exit(f"not tested with {names}: {error}", returncode=2 if all_must_run() else 0)
    try:
        config.stash[_SERVERS] = in_containers(names)
    except ServiceError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Restore logging: a command run in this process sets it up on a stderr that is gone after the
    test.
    """
    before = list(logging.root.handlers)
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    for handler in set(logging.root.handlers) - set(before):
        logging.root.removeHandler(handler)


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Servers:
    """Make servers of the chosen kinds."""
    return request.config.stash.get(_SERVERS, EMBEDDED)


@pytest.fixture(scope="session")
def services() -> Iterator[EmbeddedServices]:
    """One embedded RabbitMQ and one embedded Redis for the whole session."""
    running = EmbeddedServices()
    running.rabbitmq, running.redis = embedded_rabbitmq(), embedded_redis()
    with running:
        yield running


@pytest.fixture(scope="session")
def shared_rabbitmq(request: pytest.FixtureRequest, servers: Servers):
    """One RabbitMQ for the whole session.

    Each test uses its own names.
    """
    yield from _shared(request, servers, "rabbitmq")


@pytest.fixture(scope="session")
def shared_redis(request: pytest.FixtureRequest, servers: Servers):
    """One Redis for the whole session.

    Each test uses its own names.
    """
    yield from _shared(request, servers, "redis")


def _shared(request: pytest.FixtureRequest, servers: Servers, name: str) -> Iterator[Any]:
    make = getattr(servers, name)
    if make is getattr(EMBEDDED, name):
        yield getattr(request.getfixturevalue("services"), name)
        return
    with make() as running:
        yield running


@pytest.fixture(scope="module")
def amqp_url(shared_rabbitmq) -> Iterator[str]:
    """Its queues are gone after the module: an idle one takes the broker a tick per second."""
    yield shared_rabbitmq.url
    delete_queues(shared_rabbitmq)


@pytest.fixture(scope="session")
def redis_url(shared_redis) -> str:
    return shared_redis.url


@pytest.fixture(scope="session")
def management_url(shared_rabbitmq) -> str:
    return shared_rabbitmq.management_url


@pytest.fixture
def rabbitmq(servers: Servers) -> Iterator[Callable]:
    """``rabbitmq()`` starts a broker for this test alone, which it may kill and restart.

    It takes four seconds.
    """
    with ExitStack() as running:
        yield lambda: running.enter_context(servers.rabbitmq())


@pytest.fixture
def redis(servers: Servers) -> Iterator[Callable]:
    """``redis()`` starts a Redis for this test alone, which it may kill, pause and restart."""
    with ExitStack() as running:
        yield lambda: running.enter_context(servers.redis())


@pytest.fixture
def postgres() -> Iterator[Callable]:
    """``postgres()`` starts a PostgreSQL for this test alone, which it may kill and restart.

    It takes two seconds.
    """
    with ExitStack() as running:
        yield lambda: running.enter_context(embedded_postgres())


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """One PostgreSQL for the whole session: each test uses its own tables."""
    with embedded_postgres() as running:
        yield running.url


@pytest.fixture(scope="session")
def clustered_redis() -> Iterator[ClusteredRedis]:
    """One Redis Cluster for the whole session: three primaries with a replica each."""
    with ClusteredRedis() as running:
        yield running


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """``wait_until(condition, timeout, message)``.

    Also importable from ``tests.support.waiting``.
    """
    return _wait_until
