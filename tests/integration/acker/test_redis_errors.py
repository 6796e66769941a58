"""Every store meets every error of Redis and of its client: all stores agree on retry or refusal,
and say what to do.

Server errors come from a server: a real one if it can be provoked (at the end), else one that
replies with nothing but the error. Client errors are raised when a connection is taken.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis as redis_py
from redis import exceptions

from tests.support.saying import SayingRedis
from tests.support.waiting import wait_until
from tiercel import AckerError, RedisRefusedError, RedisUnavailableError
from tiercel.acker.effects import perform_all, perform_in_turn
from tiercel.acker.inbox.chunk import Parcel
from tiercel.acker.inbox.contract import Sender
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Token, Updates
from tiercel.acker.metrics.contract import ErrorReport, Window
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect, connect_topology
from tiercel.acker.redis.scripts import RedisServer, RedisServers
from tiercel.acker.redis_feed import FeedServer, Noted, ShardFeed
from tiercel.acker.redis_ledger import RedisLedger
from tiercel.examples.word_count import topology as demo_topology
from tiercel.spark_jobs.state.redis_shard import Turn
from tiercel.spark_jobs.state.redis_store import (
    RedisStateStore,
    RedisStateTurn,
    TaskShards,
    check_layout,
)
from tiercel.spark_jobs.state.store import Writes
from tiercel.spark_jobs.suspects.book import Case, Suspect
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import DRIVER, Attendant
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry

NAME = "errors"
NOW = timedelta(0)
TOKEN = Token(run="r", task=1, step=1)
Calls = dict[str, Callable[[], object]]


def spec_of(url: str) -> LedgerSpec:
    return LedgerSpec(
        topology=NAME, urls=(url,), shards=1, owners=1, message_timeout=timedelta(seconds=30)
    )


def one(root: int) -> Updates:
    return Updates(roots=np.array([root], np.uint64), xors=np.array([root], np.uint64))


def ledger_calls(url: str) -> tuple[Any, Calls]:
    ledger = RedisLedger(spec_of(url))
    return ledger, {
        "register": lambda: ledger.register(1, [1], [1]),
        "apply": lambda: ledger.apply(TOKEN, one(1)),
        "release": lambda: ledger.release([1]),
        "forget": lambda: ledger.forget([1]),
        "reset_timeout": lambda: ledger.reset_timeout([1]),
        "look at the version": lambda: RedisLedger(spec_of(url)).register(1, [1], [1]),
        "feed": lambda: ledger.feed(1),
    }


def census_calls(url: str) -> tuple[Any, Calls]:
    ledger = RedisLedger(spec_of(url))
    return ledger, {"pending": ledger.pending, "census": ledger.census}


def feed_calls(url: str) -> tuple[Any, Calls]:
    shard = ShardFeed(
        feed="feed", mark="mark", reader="reader", registered="registered", noted=Noted()
    )
    server = FeedServer(server=RedisServer(url), marks_ms=0, shards=[shard])
    server.server._checked = True  # otherwise every call would fail in the version check
    return server.server, {"open": server.open, "read": lambda: server.read(0.0)}


def metrics_calls(url: str) -> tuple[Any, Calls]:
    metrics = RedisMetrics(url, NAME)
    error = ErrorReport(at=datetime.now(UTC), component="c", task=1, message="m")
    return metrics, {
        "add": lambda: metrics.add("c", 1, {"n": 1}),
        "report": lambda: metrics.report([error]),
        "totals": metrics.totals,
        "over": lambda: metrics.over(Window.TEN_MINUTES),
        "errors": metrics.errors,
        "clear": metrics.clear,
    }


def state_calls(url: str) -> tuple[Any, Calls]:
    store = RedisStateStore(spec_of(url), 1)
    shards = TaskShards(
        mine=store._shards_of("c", 0), home=0, of=lambda task: store._shards_of("c", task)
    )
    turn = RedisStateTurn(shards, Turn(run_number=1, step=1, attempt=1), None)
    later = RedisStateTurn(shards, Turn(run_number=1, step=1, attempt=1), "digest")
    return store, {
        "check_layout": lambda: check_layout(spec_of(url), ["c"]),
        "begin": lambda: store.begin("c", 0, 1, [b"f"]).perform(),
        "entries": lambda: list(store.entries("c")),
        "values": lambda: store.values("c", [b"f"]),
        "count": lambda: store.count("c"),
        "read": lambda: turn.read([b"f"]),
        "read through the undo log": lambda: later.read([b"f"]),
        "scan": lambda: list(turn.scan()),
        "scan through the undo log": lambda: list(later.scan()),
        "commit": lambda: perform_in_turn(turn.writing(Writes(puts={b"f": b"v"}), "digest")),
    }


def book_calls(url: str) -> tuple[Any, Calls]:
    book = RedisCaseBook(connect_topology(url, NAME), NAME)
    return book, {
        "load": lambda: book.load(TOKEN),
        "begin": lambda: book.begin(TOKEN, Case()),
        "note": lambda: book.note(TOKEN, Suspect(component="c", task=1, seed=1)),
        "cases": book.cases,
        "forget": book.forget,
    }


def control_calls(url: str) -> tuple[Any, Calls]:
    control = RedisControl(url, NAME)
    return control, {
        "order": lambda: control.order(State.ACTIVE),
        "state": control.state,
        "ask": lambda: control.ask(State.ACTIVE),
    }


def registry_calls(url: str) -> tuple[Any, Calls]:
    registry = Registry(url)
    made: Topology = demo_topology()
    return registry, {
        "announce": lambda: registry.announce(made),
        "topologies": registry.topologies,
    }


def presence_calls(url: str) -> tuple[Any, Calls]:
    presences = RedisPresences(url, NAME)
    return presences, {
        "take": lambda: presences.take(DRIVER, Attendant("d", "")),
        "draw_run": lambda: presences.draw_run(DRIVER, "d"),
        "leave": lambda: presences.leave(DRIVER, "d"),
        "look": lambda: presences.look([DRIVER]),
    }


def inbox_calls(url: str) -> tuple[Any, Calls]:
    inboxes = RedisInboxes(RedisServers((url,)), NAME)
    inboxes._of(2)
    sender = Sender(task=1, attempt=1)
    parcel = Parcel(target=2, chunks=[b"p"], tuples=[1])
    return inboxes, {
        "adopt": lambda: inboxes.adopt("run", [2]),
        "drain": lambda: inboxes.drain("run"),
        "discard": lambda: inboxes.discard("run", 2, ["1-0"]),
        "snapshots": lambda: inboxes.snapshots("run"),
        "forget_snapshot": lambda: inboxes.forget_snapshot("run", 2),
        "figures": lambda: inboxes.figures([2]),
        "draw": lambda: inboxes.draw("run", 2),
        "fence": lambda: inboxes.fence("run", sender, [2]),
        "open": lambda: inboxes.open("run", 2, 1),
        "beat": lambda: inboxes.beat("run", {2: 1}, {}, ""),
        "append": lambda: perform_all(inboxes.append("run", sender, 1, [parcel])),
    }


STORES: dict[str, Callable[[str], tuple[Any, Calls]]] = {
    "ledger": ledger_calls,
    "census": census_calls,
    "feed": feed_calls,
    "metrics": metrics_calls,
    "state": state_calls,
    "case book": book_calls,
    "control": control_calls,
    "registry": registry_calls,
    "presences": presence_calls,
    "inboxes": inbox_calls,
}


@dataclass(frozen=True)
class Expected:
    error: str | Exception
    kind: type[AckerError]
    advice: str


RETRY = RedisUnavailableError
REFUSE = RedisRefusedError
SENT = [
    Expected("LOADING Redis is loading the dataset in memory", RETRY, "reads its data"),
    Expected(
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL", RETRY, "SCRIPT KILL"
    ),
    Expected("CLUSTERDOWN Hash slot not served", RETRY, "members of the cluster"),
    Expected(
        "TRYAGAIN Multiple keys request during rehashing of slot", RETRY, "moves to another member"
    ),
    Expected(
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        RETRY,
        "primary runs",
    ),
    Expected("UNBLOCKED force unblock from blocking operation", RETRY, "failover"),
    Expected(
        "OOM command not allowed when used memory > 'maxmemory'.",
        RETRY,
        "Redis is full .*raise its maxmemory",
    ),
    Expected("READONLY You can't write against a read only replica.", RETRY, "primary"),
    Expected("MISCONF Redis is configured to save RDB snapshots, but cannot", RETRY, "disk"),
    Expected("NOREPLICAS Not enough good replicas to write.", RETRY, "replicas"),
    Expected("NOSCRIPT No matching script.", RETRY, "flushed"),
    Expected(
        "EXECABORT Transaction discarded because of: OOM command not allowed",
        RETRY,
        "raise its maxmemory",
    ),
    Expected("EXECABORT Transaction discarded because of previous errors.", RETRY, "log"),
    Expected("ERR max number of clients reached", RETRY, "maxclients"),
    Expected("NOAUTH Authentication required.", REFUSE, "password in its URL"),
    Expected(
        "WRONGPASS invalid username-password pair or user is disabled.",
        REFUSE,
        "password in its URL",
    ),
    Expected("NOPERM User x has no permissions to run this", REFUSE, "what the user may do"),
    Expected(
        "ERR The user executing the script can't run this command or subcommand script: 7f41, on",
        REFUSE,
        "what the user may do",
    ),
    Expected(
        "ERR ACL failure in script: User x has no permissions to run the 'xadd' command",
        REFUSE,
        "what the user may do",
    ),
    Expected("DENIED Redis is running in protected mode", REFUSE, "password"),
    Expected("MOVED 3999 127.0.0.1:6381", REFUSE, r"redis\+cluster://"),
    Expected("ASK 3999 127.0.0.1:6381", REFUSE, r"redis\+cluster://"),
    Expected("CROSSSLOT Keys in request don't hash to the same slot", REFUSE, r"redis\+cluster://"),
    Expected(
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        REFUSE,
        "another program",
    ),
    Expected(
        "ERR This instance has cluster support disabled", REFUSE, "begin its URL with redis://"
    ),
    Expected("ERR Protocol error: unauthenticated multibulk length", REFUSE, "password in its URL"),
    Expected("ERR unknown command 'EVALSHA'", REFUSE, "settings"),
]
RAISED = [
    Expected(
        exceptions.ConnectionError("Error 111 connecting to host:6379."),
        RETRY,
        "check that it runs",
    ),
    Expected(exceptions.TimeoutError("Timeout reading from socket"), RETRY, "check that it runs"),
    Expected(exceptions.BusyLoadingError("Redis is loading"), RETRY, "reads its data"),
    Expected(exceptions.MaxConnectionsError("Too many connections"), RETRY, "max_connections"),
    Expected(exceptions.ClusterDownError("down"), RETRY, "members of the cluster"),
    Expected(exceptions.MasterDownError("down"), RETRY, "primary runs"),
    Expected(
        exceptions.SlotNotCoveredError("Command # 3 slot is not covered"),
        RETRY,
        "members of the cluster",
    ),
    Expected(exceptions.TryAgainError("again"), RETRY, "moves to another member"),
    Expected(
        exceptions.AuthenticationError("invalid username-password pair"),
        REFUSE,
        "password in its URL",
    ),
    Expected(
        exceptions.AuthenticationWrongNumberOfArgsError("AUTH"), REFUSE, "password in its URL"
    ),
    Expected(exceptions.AuthorizationError("no"), REFUSE, "password in its URL"),
    Expected(
        exceptions.InvalidResponse("Protocol Error: b'HTTP/1.1 400 Bad Request'"),
        REFUSE,
        "host and port",
    ),
    Expected(exceptions.MovedError("3999 127.0.0.1:6381"), REFUSE, r"redis\+cluster://"),
    Expected(exceptions.CrossSlotTransactionError("slots"), REFUSE, r"redis\+cluster://"),
]


@pytest.fixture(scope="module")
def saying() -> Iterator[SayingRedis]:
    with SayingRedis() as running:
        yield running


def without_the_look_at_the_version(store: Any) -> None:
    """Skip the version check, in which every call would fail."""
    servers = getattr(store, "_servers", None)
    if servers is not None:
        for server in servers._servers.values():
            server._checked = True


def check(calls: Calls, case: Expected, place: str = "") -> None:
    for name, call in calls.items():
        with pytest.raises(AckerError, match=case.advice) as caught:
            call()
        assert type(caught.value) is case.kind, name
        assert str(caught.value).startswith("cannot "), name
        assert place in str(caught.value), name
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", SENT, ids=lambda case: str(case.error)[:40])
@pytest.mark.parametrize("store", STORES)
def test_what_a_server_says_is_retried_or_refused_alike_by_every_store(saying, store, case):
    saying.error = str(case.error)
    kept, calls = STORES[store](saying.url)
    without_the_look_at_the_version(kept)
    with closing(kept):
        check(calls, case, saying.url.split("/")[2])


@pytest.mark.parametrize("case", RAISED, ids=lambda case: type(case.error).__name__)
@pytest.mark.parametrize("store", STORES)
def test_what_the_client_raises_is_retried_or_refused_alike_by_every_store(
    monkeypatch, store, case
):
    def unlucky(*_: object, **__: object) -> Any:
        raise case.error

    monkeypatch.setattr(redis_py.ConnectionPool, "make_connection", unlucky)
    kept, calls = STORES[store]("redis://127.0.0.1:1/0")
    without_the_look_at_the_version(kept)
    with closing(kept):
        check(calls, case, "127.0.0.1:1")


def some_of(calls: Calls, *names: str) -> Calls:
    return {name: calls[name] for name in names}


# Calls that write, at least one of each kind: by a script, a pipeline, a transaction, one command.
WRITING = {
    "ledger": ("register",),
    "metrics": ("add", "report"),
    "state": ("begin",),
    "case book": ("begin", "note"),
    "control": ("order", "ask"),
    "registry": ("announce",),
    "inboxes": ("append",),
}


def check_writes(url: str, case: Expected) -> None:
    for store, names in WRITING.items():
        kept, calls = STORES[store](url)
        with closing(kept):
            check(some_of(calls, *names), case)


def check_all(url: str, case: Expected) -> None:
    for make in STORES.values():
        kept, calls = make(url)
        with closing(kept):
            check(calls, case)


def test_a_server_that_is_full_takes_in_nothing_new(redis):
    server = redis()
    with closing(connect(server.url)) as client:
        client.config_set("maxmemory", 1)
        for store in ("ledger", "case book", "control", "registry"):
            kept, calls = STORES[store](server.url)
            with closing(kept):
                refused = Expected("OOM", RETRY, "Redis is full.*raise its maxmemory")
                check(some_of(calls, *WRITING[store]), refused)


def test_a_replica_takes_no_writes_of_any_store(redis):
    server = redis()
    with closing(connect(server.url)) as client:
        client.replicaof("127.0.0.1", 1)
        check_writes(server.url, Expected("READONLY", RETRY, "primary"))


def test_a_replica_that_may_not_show_old_data_makes_every_store_wait(redis):
    server = redis()
    with closing(connect(server.url)) as client:
        client.config_set("replica-serve-stale-data", "no")
        client.replicaof("127.0.0.1", 1)
        for store in ("metrics", "registry", "presences", "inboxes"):
            kept, calls = STORES[store](server.url)
            with closing(kept):
                for name in calls.keys() & {"totals", "topologies", "look", "figures"}:
                    check({name: calls[name]}, Expected("MASTERDOWN", RETRY, "primary runs"))


@pytest.mark.embedded  # needs the server's own folder
def test_a_server_that_cannot_save_takes_no_writes_of_any_store(redis):
    server = redis()
    with closing(connect(server.url)) as client:
        client.config_set("save", "1 1")
        client.set("something", "to save")
        # A folder has the place of the file.
        place = (
            Path(client.config_get("dir")["dir"]) / client.config_get("dbfilename")["dbfilename"]
        )
        place.mkdir()
        with suppress(exceptions.RedisError):
            client.bgsave()
        wait_until(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err",
            20,
            "a save that failed",
        )
        check_writes(server.url, Expected("MISCONF", RETRY, "disk"))


def test_without_enough_replicas_no_store_writes(redis):
    server = redis()
    with closing(connect(server.url)) as client:
        client.config_set("min-replicas-to-write", 1)
        check_writes(server.url, Expected("NOREPLICAS", RETRY, "replicas"))


def test_a_server_that_is_busy_with_a_script_makes_every_store_wait(redis):
    server = redis()
    observer = connect(server.url)
    stuck = redis_py.Redis.from_url(server.url, socket_timeout=60, retry=None)
    with closing(observer), closing(stuck):
        observer.config_set("busy-reply-threshold", 1)

        def spin() -> None:
            with suppress(exceptions.RedisError):
                stuck.eval("while true do end", 0)

        thread = threading.Thread(target=spin)
        thread.start()

        def busy() -> bool:
            try:
                observer.get("x")
            except exceptions.ResponseError as error:
                return str(error).startswith("BUSY")
            return False

        try:
            wait_until(busy, 10, "the server to be busy")
            check_all(server.url, Expected("BUSY", RETRY, "SCRIPT KILL"))
        finally:
            observer.script_kill()
            thread.join()


def test_without_the_password_every_store_refuses(redis):
    server = redis()
    _, _, where = server.url.rpartition("@")
    check_all(f"redis://{where}", Expected("NOAUTH", REFUSE, "password in its URL"))
    check_all(f"redis://:wr0ng@{where}", Expected("WRONGPASS", REFUSE, "password in its URL"))


def test_without_the_right_every_store_refuses(redis):
    server = redis()
    _, _, where = server.url.rpartition("@")
    with closing(connect(server.url)) as client:
        client.execute_command("ACL", "SETUSER", "visitor", "on", ">pw", "~*", "+info", "+ping")
    check_all(f"redis://visitor:pw@{where}", Expected("NOPERM", REFUSE, "what the user may do"))


def test_a_command_or_key_that_a_script_may_not_use_is_a_missing_right(redis):
    server = redis()
    _, _, where = server.url.rpartition("@")
    with closing(connect(server.url)) as client:
        client.execute_command("ACL", "SETUSER", "visitor", "on", ">pw", "~*", "+@all", "-hmget")
        client.execute_command("ACL", "SETUSER", "stranger", "on", ">pw", "%R~*", "+@all")
    for user in ("visitor", "stranger"):
        ledger, of_ledger = STORES["ledger"](f"redis://{user}:pw@{where}")
        with closing(ledger):
            check(
                some_of(of_ledger, "register"),
                Expected("script|NOPERM", REFUSE, "what the user may do"),
            )


def test_a_key_of_another_kind_is_refused_with_what_to_do(redis_url):
    with closing(connect(redis_url)) as client:
        key = "tiercel:{errors}:metrics"
        client.set(key, "a string")
        metrics, of_metrics = STORES["metrics"](redis_url)
        with closing(metrics):
            check(
                some_of(of_metrics, "add", "totals"),
                Expected("WRONGTYPE", REFUSE, "another program"),
            )
        client.delete(key)


@pytest.mark.embedded  # a container's replica cannot reach its primary at the published port
def test_a_server_that_is_loading_makes_every_store_wait(redis):
    """A replica loads its primary's data when it begins to follow it; here it loads slowly."""
    primary = redis()
    server = redis()
    login, _, where = primary.url.removeprefix("redis://:").partition("@")
    host, _, port = where.partition("/")[0].partition(":")
    with closing(connect(primary.url)) as source, closing(connect(server.url)) as client:
        source.config_set("repl-diskless-sync-delay", 0)
        with source.pipeline(transaction=False) as pipeline:
            for number in range(2_000):
                pipeline.set(f"key-{number}", secrets.token_bytes(2000))  # cannot be compressed
            pipeline.execute()
        # All keys take forty seconds, and clients are served after each.
        client.config_set("key-load-delay", 20_000)
        client.config_set("loading-process-events-interval-bytes", 1024)
        client.config_set("masterauth", login)
        client.replicaof(host, int(port))

        def loading() -> bool:
            try:
                client.get("x")
            except exceptions.BusyLoadingError:
                return True
            return False

        wait_until(loading, 20, "the server to be loading")
        for store, name in (
            ("ledger", "release"),
            ("metrics", "totals"),
            ("presences", "look"),
            ("inboxes", "snapshots"),
        ):
            kept, calls = STORES[store](server.url)
            with closing(kept):
                # Redis refuses a script with flags as a write to a replica before it checks for
                # loading.
                said = "reads its data|takes no writes now"
                check({name: calls[name]}, Expected("LOADING", RETRY, said))
        client.config_set("key-load-delay", 0)
