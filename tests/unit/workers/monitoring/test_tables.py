"""Terminal and page show the same columns, with the same texts."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from tiercel.acker.metrics.contract import ErrorReport
from tiercel.queues.broker.depths import QueueDepth
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.workers.monitoring import screen, tables
from tiercel.workers.monitoring.overview import Own, QueueRow
from tiercel.workers.monitoring.page.tables import DEAD, OWN, definitions, rows_of
from tiercel.workers.monitoring.tables import Kind, TableKind

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
        tables.QUEUES.columns[1],
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
    shown = rendered(screen.letter_table([letter]), width=80)
    assert letter.id in shown
    assert letter.died.strftime("%Y-%m-%d") in shown
    assert [column.name for column in DEAD.columns] == ["died", "reason", "bytes", "body"]
    assert tables.DEAD.columns[-1].kind is Kind.NAME
