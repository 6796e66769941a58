"""Pictures for README.md and docs/monitor.md, of a topology under load: ``pytest --screenshots
docs/images``.
"""

from __future__ import annotations

import base64
import io
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect
from rich.console import Console
from rich.text import Text

from tests.support.broker import ready
from tests.support.monitors import chromium, give_token, monitor, number, rows
from tests.support.terminal import tiercel_run
from tests.support.waiting import wait_until
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.queues.retry import NO_WAIT

pytestmark = [pytest.mark.timeout(900), pytest.mark.screenshots]

ROOT = Path(__file__).parents[2]
WORK = WorkQueue(name="sentences", delivery_limit=3, retry=NO_WAIT)
COLUMNS = 100
CHARTED_S = 40
LINES = 50
TOPOLOGY = """
from tiercel import QueueSpout
from tiercel.queues.retry import NO_WAIT
from tiercel import BasicBolt, TopologyBuilder


class Split(BasicBolt):
    output_streams = {"default": "word string", "long": "word string"}

    def execute(self, tup, collector):
        if tup["line"].startswith("bad"):
            raise ValueError(f"cannot parse {tup['line']!r}")
        for word in tup["line"].split():
            collector.emit([word], stream="long" if len(word) > 5 else "default")


class Count(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup["word"]])


class Store(BasicBolt):
    def execute(self, tup, collector):
        pass


def topology():
    builder = TopologyBuilder("word-shop")
    spout = QueueSpout("sentences", fields="line string", delivery_limit=3, retry=NO_WAIT)
    builder.set_spout("sentences", spout)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    store = builder.set_bolt("store", Store(), 1)
    store.shuffle_grouping("count").shuffle_grouping("split", "long")
    return builder.build()
"""


@pytest.fixture
def pictures(pytestconfig):
    folder = Path(pytestconfig.getoption("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def shop(rabbitmq, redis, tmp_path):
    """Servers of a running topology that gets sentences, one in fifty of them bad."""
    broker = rabbitmq()
    store = redis()
    (tmp_path / "shop.py").write_text(TOPOLOGY)
    declare_queue(broker.url, WORK)
    servers = {"TIERCEL_AMQP": broker.url, "TIERCEL_REDIS": store.url, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "run.log"
    ended = threading.Event()
    feeder = threading.Thread(target=feed, args=(broker.url, ended))
    with tiercel_run(
        "shop:topology", folder=tmp_path, log=log, environment={**os.environ, **servers}
    ) as process:
        wait_until(lambda: "run_started" in log.read_text(), 400, "the topology to run")
        feeder.start()
        try:
            yield broker, store
        finally:
            ended.set()
            feeder.join()
            process.terminate()
            process.wait(60)


def feed(url, ended):
    with Publisher(url) as publisher:
        for count in range(1, 10**9):
            line = (
                f"bad sentence {count}"
                if count % 25 == 0
                else "the monitor shows what the broker and the ledger report"
            )
            publisher.publish(WORK.name, [line.encode()])
            if ended.wait(0.02):
                return


@contextmanager
def at_a_terminal(*arguments):
    """``screen()`` is the terminal's current content, with its colours."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
        "LINES": str(LINES),
    }
    command = [sys.executable, "-m", "tiercel", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = bytearray()

    def screen():
        while select.select([ours], [], [], 0)[0]:
            seen.extend(os.read(ours, 65536))
        # A frame begins in the upper left corner; the last frame may be incomplete.
        frames = seen.decode("utf-8", "replace").split("\x1b[H")
        return Text.from_ansi(frames[-2].replace("\r", "")) if len(frames) > 2 else Text()

    try:
        yield screen
    finally:
        process.terminate()
        process.wait(30)
        os.close(ours)


def picture_of(text, title, open_page, file):
    """Draw a terminal's content, without the web font that rich would load."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    text.rstrip()
    console.print(text)
    svg = re.sub(
        r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL
    ).replace("Fira Code", "DejaVu Sans Mono")
    wide, high = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
    page = open_page(
        "data:text/html;charset=utf-8;base64,"
        + base64.b64encode(f"<body style='margin:0'>{svg}".encode()).decode()
    )
    page.set_viewport_size({"width": round(float(wide)), "height": round(float(high))})
    page.screenshot(path=file)


def test_pictures(shop, pictures, tmp_path):
    broker, store = shop
    with (
        chromium() as open_page,
        monitor(tmp_path, broker.url, store.url, broker.management_url) as url,
    ):
        page = open_page(f"{url}?topology=word-shop", width=1200)
        wait_until(lambda: ready(broker.url, WORK.dead) >= 12, 600, "some bad sentences to be dead")
        wait_until(
            lambda: number(rows(page, "Spouts")[0]["acked"]) > 500 and rows(page, "Errors"),
            600,
        )
        wait_until(lambda: rows(page, "Queues")[0]["dead letters"] != "0", 300)
        # The charts have data to show.
        since = time.monotonic()
        wait_until(lambda: time.monotonic() - since > CHARTED_S, 2 * CHARTED_S)
        page.set_viewport_size({"width": 1200, "height": 860})
        page.screenshot(path=pictures / "monitor.png")
        page.get_by_test_id("graph").locator("g.node", has_text="split").click()
        expect(page.get_by_test_id("component")).to_contain_text("cannot parse")
        wait_until(lambda: rows(page, "Its tasks"))
        page.screenshot(path=pictures / "monitor-component.png")
        page.get_by_test_id("component").get_by_role("button", name="close").click()
        page.get_by_test_id("look").click()
        give_token(page)
        expect(page.get_by_test_id("Dead letters")).to_contain_text("bad sentence")
        page.get_by_test_id("Dead letters").get_by_role("checkbox").nth(2).click()
        page.get_by_test_id("Errors").evaluate(
            "table => scrollTo(0, scrollY + table.getBoundingClientRect().top - 130)"
        )
        page.screenshot(path=pictures / "monitor-letters.png")
        first = open_page(url, width=1200)
        wait_until(lambda: rows(first, "Topologies"))
        first.set_viewport_size({"width": 1200, "height": 300})
        first.screenshot(path=pictures / "monitor-all.png")
        phone = open_page(f"{url}?topology=word-shop", width=390, dark=True)
        wait_until(lambda: rows(phone, "Spouts"))
        wait_until(lambda: phone.locator(".tiercel-chart path[d^=M]").count() >= 3)
        phone.screenshot(path=pictures / "monitor-phone.png")
        arguments = [
            "--amqp",
            broker.url,
            "--redis",
            store.url,
            "--management",
            broker.management_url,
        ]
        with at_a_terminal("top", "word-shop", *arguments) as screen:
            wait_until(
                lambda: "cannot parse" in screen().plain and "no driver" not in screen().plain, 300
            )
            picture_of(screen(), "tiercel top", open_page, pictures / "top.png")
    assert {
        "monitor-all.png",
        "monitor.png",
        "monitor-component.png",
        "monitor-letters.png",
        "monitor-phone.png",
        "top.png",
    } <= {file.name for file in pictures.iterdir()}
