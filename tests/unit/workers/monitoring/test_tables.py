"""Terminal and page show the same columns, with the same texts."""

import io
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from tests.support.overviews import health_of
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    DatabaseSink,
    QueueSink,
    QueueSpout,
    StatefulBolt,
    TopologyBuilder,
)
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import (
    ONCE_REPEATED,
    ONCE_UNKEYED,
    ONCE_UNSURE,
    RETRY_LATER,
    Counted,
    ErrorReport,
    chained_counter,
)
from tiercel.queues.broker.depths import QueueDepth
from tiercel.queues.message.identity import NO_IDENTITY
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import ExecutorReport
from tiercel.workers.control.registry import graph_of
from tiercel.workers.control.steering import Standing
from tiercel.workers.monitoring import screen, tables
from tiercel.workers.monitoring.findings import Grade, Health, ServerProblems
from tiercel.workers.monitoring.overview import (
    AckerRow,
    Overview,
    Own,
    QueueRow,
    SpoutRow,
    overview_of,
)
from tiercel.workers.monitoring.page.sections import (
    DEAD,
    DETAILS,
    OWN,
    definitions,
    rows_of,
    tables_of,
)
from tiercel.workers.monitoring.rows import BoltRow, Queued, Readings, WindowsRow
from tiercel.workers.monitoring.tables import Kind, TableKind

WELL = Health(grade=Grade.WELL, badge="well")
AWAY = ServerProblems(redis="Redis does not answer")
KINDS = [kind for kind in vars(tables).values() if isinstance(kind, TableKind)]


def rendered(table, width=200):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)
def test_each_column_of_a_table_is_defined_once(kind):
    names = [column.name for column in kind.columns]
    assert len(set(names)) == len(names)
    assert [each["name"] for each in definitions(kind)] == names


def test_a_table_without_some_columns_keeps_the_order_of_the_others():
    names = [column.name for column in tables.QUEUES.without("ready", "out/s").columns]
    assert names == ["queue", "use", "unacked", "delayed", "consumers", "in/s", "dead letters"]
    assert tables.QUEUES.only("ready", "queue").columns == (
        tables.QUEUES.columns[2],
        tables.QUEUES.columns[0],
    )


def test_a_terminal_shows_what_the_page_shows():
    queue = QueueDepth(
        name="sentences",
        ready=1234,
        unacked=None,
        delayed=0,
        consumers=2,
        in_rate=1.5,
        out_rate=None,
        dead_lettered=3,
    )
    queue = QueueRow(depth=queue, use="sink")
    [row] = rows_of(tables.QUEUES, [queue])
    last = rendered(screen.depth_table([queue])).rstrip().splitlines()[-1]
    assert last.split() == [row[column.name] for column in tables.QUEUES.columns]


def test_the_page_of_one_topology_says_its_name_once():
    own = Own(
        topology="words",
        waiting=7,
        oldest_waiting_s=1.25,
        pending=8,
        oldest_pending_s=2.5,
        in_back_off=3,
        feed_entries=9,
        feed_lag_s=0.5,
    )
    [row] = rows_of(OWN, [own])
    assert "topology" not in row
    shown = rendered(screen.own_table([own])).rstrip().splitlines()[-1]
    assert shown.replace(" s", "s").split() == [
        "words",
        *(row[column.name].replace(" ", "") for column in OWN.columns),
    ]


def test_errors_name_their_topology_only_where_there_are_several():
    error = ErrorReport(at=datetime.now(UTC), component="split", task=3, message="boom")
    assert "topology" not in rendered(screen.error_table([("words", error)]))
    both = rendered(screen.error_table([("words", error), ("orders", error)]))
    assert "topology" in both
    assert both.count("boom") == 2


def test_an_id_is_in_one_piece_whatever_the_width():
    letter = DeadLetter(
        id="0123456789abcdef0123456789abcdef",
        queue="q",
        reason="r" * 300,
        died=datetime(2026, 11, 23, 2, 5, 6, tzinfo=UTC).astimezone(),
        size=2,
        preview="b" * 300,
        body=b"",
        headers={},
    )
    shown = rendered(screen.table_of(tables.DEAD, [letter]), width=80)
    assert letter.id in shown
    assert letter.died.strftime("%Y-%m-%d") in shown
    assert [column.name for column in DEAD.columns] == ["died", "reason", "bytes", "body"]
    assert tables.DEAD.columns[-1].kind is Kind.NAME


BUSY = Overview(
    name="orders",
    state="active",
    driver=True,
    seconds=600,
    spouts=(
        SpoutRow(
            name="orders-in",
            tasks=16,
            running=16,
            shares_queue=True,
            counts=Counter(
                emitted=12_345_678,
                transferred=12_345_678,
                acked=12_340_001,
                failed=5_678,
                timeout=1_234,
                released=12,
            ),
            complete_ms=12_345.0,
            complete_p99_ms=23_456.0,
            latencies=(),
            pending=12_000,
            oldest_s=123.4,
            in_back_off=1_234,
            silent_s=0.0,
            last_error=None,
        ),
    ),
    bolts=(
        BoltRow(
            name="enrich-orders",
            tasks=64,
            counts=Counter(
                emitted=12_345_679,
                transferred=24_691_358,
                executed=12_345_670,
                acked=12_345_671,
                failed=6_789,
            ),
            capacity=0.987,
            busy=1.0,
            free_tasks_take=False,
            queued=Queued(1, 0.5),
            execute_ms=1_234.0,
            process_ms=2_345.0,
            waiting=123_456,
            oldest_s=1234.5,
            steps_a_second=1_234.5,
            step_ms=345.6,
            restarts=17,
            unattended=(3, 4, 5, 6, 7),
            last_error=None,
        ),
    ),
    tasks=(),
    acker=AckerRow(
        pending=12_345,
        memory_bytes=123_456_789,
        counts=Counter(executed=123_456_789, acked=12_340_001, failed=5_678, late=345),
        updates_a_second=23_456.7,
        timeouts=1_234,
        update_ms=0.012,
    ),
    edges=(),
    own=Own(
        topology="orders",
        waiting=123_457,
        oldest_waiting_s=1234.5,
        pending=12_346,
        oldest_pending_s=123.5,
        in_back_off=1_234,
        feed_entries=1_235,
        feed_lag_s=12.3,
    ),
    in_flight_limit_s=30,
    errors=(
        ErrorReport(
            at=datetime.now(UTC), component="enrich-orders", task=33, message="ValueError: " * 20
        ),
    ),
    queues=(
        QueueDepth(
            name="orders",
            ready=12_345_672,
            unacked=12_001,
            delayed=12_002,
            consumers=16,
            in_rate=12_003.0,
            out_rate=12_004.0,
            dead_lettered=12_005,
        ),
    ),
)
HOLDS = WindowsRow(
    name="orders-per-minute",
    open=123_457,
    held=12_345_678,
    watermark=datetime(2026, 11, 23, 2, 5, 6, tzinfo=UTC).astimezone(),
    watermark_lag_s=1_234.6,
    closed=12_345_679,
    failed=1_235,
    late=12_346,
    refused=1_236,
    oldest_s=1_234.7,
)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_top_shows_how_far_the_windows_are_at_any_width(width):
    shown = rendered(screen.top_view(replace(BUSY, windows=(HOLDS,)), "10m", WELL), width)
    assert max(map(len, shown.splitlines())) <= width
    for text in ("orders-per-minute", "123,457", "1,234.6 s", "12,345,679", "12,346", "1,234.7 s"):
        assert text in shown
    moment = HOLDS.watermark.strftime("%Y-%m-%d %H:%M:%S")
    assert (moment in shown) == (width > 80)
    assert ("1,236" in shown) == (width > 100)


# What the operator of a topology in trouble looks for first.
URGENT = (
    *("12,345", "23,456", "12,340,001", "5,678", "12,000", "16/16"),
    *("0.987", "1,234", "12,345,670", "6,789"),
    *("123,456", "1,234.5 s", "1.000", "17", "3, 4, 5 and 2 more"),
    *("1,234", "12,345,672", "12,001", "16", "12,005"),
    *("123,457", "12,346", "123.5 s", "12.3 s"),
)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_top_is_readable_at_80_columns_and_shows_more_where_there_is_room(width):
    shown = rendered(screen.top_view(BUSY, "10m", WELL), width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in shown
    for text in URGENT:
        assert text in shown
    assert ("12,345,678" in shown) == (width > 80)
    assert ("transferred" in shown) == (width > 100)


@pytest.mark.parametrize(
    ("name", "host"), [("t" * 64, "box"), ("orders", "orders-driver-6b8f7c9d5d-x2x9z")]
)
def test_no_long_name_or_host_hides_the_health_in_the_list(name, host):
    at = datetime(2026, 11, 23, 2, 5, 6, tzinfo=UTC).astimezone()
    row = Standing(
        name=name, ordered=State.ACTIVE, driver=True,
        driver_at=Whereabouts(host=host, pid=41, since=at),
        spout_tasks=4, spouts=3, in_flight=12_345, last_run=at, health="in trouble", findings=1,
    )  # fmt: skip
    shown = rendered(screen.fitting(tables.TOPOLOGIES, [row]), 80)
    assert max(map(len, shown.splitlines())) <= 80
    for text in ("active", "in trouble", "3/4", "12,345"):
        assert text in shown
    assert host in rendered(screen.fitting(tables.TOPOLOGIES, [row]), 200)


def test_a_long_name_is_broken_and_no_number_is():
    long = replace(
        BUSY,
        spouts=(replace(BUSY.spouts[0], name="s" * 60),),
        bolts=(replace(BUSY.bolts[0], name="b" * 60),),
        queues=(replace(BUSY.queues[0], name="q" * 60),),
        own=replace(BUSY.own, topology="t" * 60),
    )
    shown = rendered(screen.top_view(long, "10m", WELL), 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    for text in URGENT:
        assert text in shown
    for letter in "sbqt":
        assert shown.count(letter) >= 60


class Batches(BatchBolt):
    def execute_batch(self, tuples, collector):
        """Do nothing."""


class Batch(ArrowBolt):
    def execute(self, batch, collector):
        """Do nothing."""


class Call(AsyncBolt):
    async def execute(self, tup, collector):
        """Do nothing."""


class Ledger(StatefulBolt):
    once = True


EVERY_BOLT = {
    "plain": Bolt(),
    "basic": BasicBolt(),
    "batch": Batches(),
    "arrow": Batch(),
    "async": Call(),
    "stateful": StatefulBolt(),
    "once": Ledger(),
    "publishes": QueueSink("out"),
    "stores": DatabaseSink("sqlite:///orders.db", "orders"),
    "ordered": BasicBolt(),
    "limited": BasicBolt(),
    "ticking": BasicBolt(),
    "chained": BasicBolt(),
}
BOLT_SETTINGS = {
    "ordered": {"ordered_by": "order"},
    "limited": {"rate_limit": "100/s"},
    "ticking": {"tick_tuple_freq_secs": 1},
}
COUNTS = dict.fromkeys(
    (
        *("emitted", "transferred", "executed", "acked", "failed", "steps", "execute_ns"),
        *(NO_IDENTITY, ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE, RETRY_LATER, "state_lost_at"),
        *("windows_closed", "windows_failed", "windows_late", "windows_refused"),
    ),
    7,
)


def seen_whole(builder):
    """The overview of a topology in which everything was counted."""
    graph = graph_of(builder.build())
    components = (*graph.spouts, *graph.bolts)
    counts = {each.name: {each.tasks[0]: COUNTS} for each in components}
    raw = Readings(
        graph=graph,
        counted=Counted(counts=counts, seconds=600),
        present={},
        state=None,
        driver=True,
        inboxes={},
        census=Census(pending=1, memory_bytes=1, feed_entries=1, feed_lag_s=1),
        errors=[replace(BUSY.errors[0], component=each.name) for each in components],
        rates={"chained": {graph.bolts[-1].tasks[0]: COUNTS | {chained_counter("basic"): 7}}},
        slots=[Counted(counts=counts, seconds=30)],
        states_lost={each.name: datetime.now(UTC) for each in graph.bolts},
    )
    return replace(overview_of("orders", raw), queues=BUSY.queues, sinks=BUSY.queues)


@pytest.fixture(scope="module")
def overview():
    """The overview of a topology with every kind of bolt."""
    builder = TopologyBuilder("orders")
    spout = QueueSpout("orders", "order string", identity="message_id")
    builder.set_spout("in", spout)
    for name, each in EVERY_BOLT.items():
        settings = BOLT_SETTINGS.get(name, {})
        bolt = builder.set_bolt(name, each, config=settings)
        bolt.fields_grouping("in", "order") if name == "ordered" else bolt.shuffle_grouping("in")
    return seen_whole(builder)


def test_every_section_of_the_page_shows_every_kind_of_bolt(overview):
    found = tables_of(overview)
    assert set(found) == {*DETAILS, tables.FAULTS}
    for kind in (tables.BOLTS, tables.TASKS):
        column = kind.columns[0].name
        assert {row[column] for row in found[kind]} == EVERY_BOLT.keys()
    assert {row["component"] for row in found[tables.ONCE]} == {"in", *EVERY_BOLT}
    assert {row["component"] for row in found[tables.FAULTS]} == {"in", *EVERY_BOLT}
    for kind, rows in found.items():
        assert all(set(row) == {"key", *(each.name for each in kind.columns)} for row in rows)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)
def test_the_terminal_can_leave_out_columns_of_any_table(kind):
    """``tiercel top`` ended with a KeyError at a table that names no columns to leave out."""
    assert rendered(screen.fitting(kind, ()), 40)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_top_shows_each_of_its_tables_for_every_kind_of_bolt(width, overview):
    assert {row.name for row in overview.once} == {"in", *EVERY_BOLT}
    shown = rendered(screen.top_view(overview, "10m", health_of(overview, AWAY)), width)
    for table in (tables.SPOUTS, tables.BOLTS, tables.ONCE, tables.QUEUES, tables.ERRORS):
        heading = table.columns[0].name
        assert heading in shown, f"the table {table.title}"
    for name in EVERY_BOLT:
        assert shown.count(name) >= 3, "as a bolt, its tasks, and where it takes effect once"
    assert "Redis does not answer" in shown
    assert max(map(len, shown.splitlines())) <= width


def test_top_says_why_no_executor_can_run_bolts():
    trouble = "executor 1 on host-3 cannot start Python '/no/python': No such file or directory"
    seen = replace(BUSY, trouble=trouble)
    shown = rendered(screen.top_view(seen, "10m", health_of(seen)))
    assert f"no executor can run bolts: {trouble}" in shown
    assert "no executor" not in rendered(screen.top_view(BUSY, "10m", WELL))


def test_top_says_how_many_executors_are_wanted_and_why():
    report = ExecutorReport(wanted=7, present=4, refused=3, why="900 waiting, 0.5 s each")
    shown = rendered(screen.top_view(replace(BUSY, executors=report), "10m", WELL))
    assert "executors: 7 wanted, 4 present, 3 refused (900 waiting, 0.5 s each)" in shown
    assert "executors:" not in rendered(screen.top_view(BUSY, "10m", WELL))
