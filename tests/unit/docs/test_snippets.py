"""On all pages, Python snippets compile and commands exist; some samples are run in the kit."""

from __future__ import annotations

import ast
import re
import textwrap
from contextlib import nullcontext
from typing import Any

import pytest

from tests.support.pages import ROOT, commands_on, page
from tiercel import TopologyBuilder
from tiercel.testing import FeederSpout, LocalCluster
from tiercel.workers.cli.app import COMMANDS

PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))
KNOWN = {name for lines in COMMANDS.values() for name in lines}


@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_a_page_is_python(name):
    text = (ROOT / "docs" / name).read_text()
    for block in re.findall(r"^( *```python.*?\n.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        code = textwrap.dedent(textwrap.dedent(block).partition("\n")[2])
        ast.parse(code, filename=name)


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith("decisions/")])
def test_a_command_of_a_page_is_one_of_ours(name):
    assert {command.split()[0] for command in commands_on(name)} <= KNOWN


def sample(name: str, number: int = 0, **given: Any) -> dict[str, Any]:
    """Run a block of Python of a page, and return its names; ``given`` are names that it uses."""
    block = re.findall(r"^```python\n(.*?)^```", page(name), re.DOTALL | re.MULTILINE)[number]
    names = {"__name__": "page", **given}
    exec(compile(textwrap.dedent(block), f"docs/{name}", "exec"), names)
    return names


def test_a_booking_that_comes_twice_is_one_row():
    with LocalCluster(sample("exactly-once.md")["topology"]()) as cluster:
        for _ in range(2):
            body = '{"order_id": "a", "customer": "ann", "cents": 5}'
            cluster.feed_body(body, identity="order-a")
        cluster.run_until_idle()
        assert cluster.acked("orders") == [1, 2]
        row = {"order_id": "a", "customer": "ann", "cents": 5, "balance": 5}
        assert cluster.written("bookings") == [row]


class Database:
    """Refuses a batch with the number 3."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def transaction(self):
        return nullcontext()

    def executemany(self, _statement, rows):
        if [3] in map(list, rows):
            raise ValueError("no 3")
        self.rows += rows


def test_a_batch_with_a_bad_row_stores_the_others():
    database = Database()
    names = sample("models.md", connect=lambda _address: database, INSERT="insert")
    feeder = FeederSpout("n long")
    builder = TopologyBuilder("store")
    builder.set_spout("rows", feeder)
    config = {"database": "postgresql://…"}
    builder.set_bolt("store", names["Store"](), config=config).shuffle_grouping("rows")
    with LocalCluster(builder.build()) as cluster:
        for number in range(10):
            feeder.feed([number], number)
        cluster.run_until_idle()
        assert cluster.failed("rows") == [3]
        assert sorted(map(list, database.rows)) == [[n] for n in range(10) if n != 3]


def test_a_span_of_a_bolt_needs_no_switch():
    names = sample("traces.md")
    feeder = FeederSpout("order long")
    builder = TopologyBuilder("pricing")
    builder.set_spout("orders", feeder)
    builder.set_bolt("price", names["Price"]()).shuffle_grouping("orders")
    with LocalCluster(builder.build()) as cluster:
        feeder.feed([1], 1)
        cluster.run_until_idle()
        assert cluster.read_tuples("price") == [[19.9]]


def test_bolts_that_wait_are_what_they_seem():
    lookup = sample("work-that-waits.md", API="http://127.0.0.1")["Lookup"]
    price = sample("work-that-waits.md", 1)["Price"]
    builder = TopologyBuilder("waiting")
    builder.set_spout("orders", FeederSpout("customer string"))
    builder.set_bolt("lookup", lookup()).shuffle_grouping("orders")
    builder.set_bolt("price", price()).shuffle_grouping("lookup")
    assert set(builder.build().bolts) == {"lookup", "price"}
