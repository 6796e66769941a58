"""``tiercel monitor`` in a real browser: a real topology under load, the actions on its page, and
servers that go away.
"""

import itertools
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.broker import put, unique, wait_ready
from tests.support.inboxes import parcel
from tests.support.inboxes import put as append
from tests.support.monitors import chromium, give_token, monitor, number, rows
from tests.support.terminal import tiercel_run
from tests.support.waiting import wait_until
from tiercel import Bolt, QueueSpout, TopologyBuilder, WorkQueue, declare_queue
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.scripts import RedisServers
from tiercel.compose.guard import GuardedProcess, Launch
from tiercel.compose.install import find_system_program, install_missing
from tiercel.compose.server import free_port
from tiercel.workers.control.presence import Holder, Lease, Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.control.registry import Registry

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]

TOPOLOGY = """
from tiercel import QueueSpout
from tiercel.queues.retry import NO_WAIT
from tiercel import BasicBolt, TopologyBuilder


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        if tup["line"] == "poison":
            raise ValueError("<b>cannot split poison</b>")
        for word in tup["line"].split():
            collector.emit([word])


class Sink(BasicBolt):
    def execute(self, tup, collector):
        pass


def topology():
    builder = TopologyBuilder("NAME")
    spout = QueueSpout("NAME", fields="line string", delivery_limit=1, retry=NO_WAIT)
    builder.set_spout("lines", spout)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("sink", Sink(), 2).fields_grouping("split", "word")
    return builder.build()
"""


@pytest.fixture
def browser():
    with chromium() as open_page:
        yield open_page


@pytest.fixture
def running(services, tmp_path):
    """The name of a running topology, and of its queue."""
    name = unique("monitored")
    (tmp_path / "monitored.py").write_text(TOPOLOGY.replace("NAME", name))
    servers = {
        "TIERCEL_AMQP": services.amqp_url,
        "TIERCEL_REDIS": services.redis_url,
        "PYTHONPATH": str(ROOT),
    }
    log = tmp_path / "run.log"
    with tiercel_run(
        "monitored:topology", folder=tmp_path, log=log, environment={**os.environ, **servers}
    ) as process:
        wait_until(lambda: "run_started" in log.read_text(), 300, "the topology to run")
        yield name
        process.terminate()
        process.wait(120)


def figures(url, name):
    """Return {(metric, relevant labels): value} of one topology."""
    with urllib.request.urlopen(f"{url}metrics") as response:
        text = response.read().decode()
    found = {}
    for line in text.splitlines():
        if f'topology="{name}"' in line:
            metric, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()
            component = re.search(r'(?:spout|bolt)="([^"]*)"', labels)
            found[metric, component[1] if component else None] = float(value)
    return found


@pytest.mark.quick
def test_it_shows_what_the_counters_say_and_does_what_it_is_told(
    services, running, browser, tmp_path
):
    put(services.amqp_url, running, *[b"a b c"] * 200, b"poison")
    metrics = RedisMetrics(services.redis_url, running)
    with monitor(tmp_path, services.amqp_url, services.redis_url, services.management_url) as url:
        page = browser(f"{url}?topology={running}")
        wait_until(
            lambda: [row["acked"] for row in rows(page, "Spouts")] == ["200"],
            300,
            "200 lines to be acked",
        )
        wait_until(
            lambda: rows(page, "Queues")[0]["dead letters"] == "1", 300, "the poison to be dead"
        )
        wait_until(
            lambda: rows(page, "Spouts")[0]["failed"] == "2",
            300,
            "both of its failures to be counted",
        )

        def differing():
            """Return the columns of the page that differ from the counters."""
            totals = metrics.totals()
            [spout] = totals["lines"].values()
            shown = rows(page, "Spouts")[0]
            found = {
                column
                for column in ("emitted", "transferred", "acked", "failed")
                if number(shown[column]) != spout[column]
            }
            return found | {
                (row["bolt"], column)
                for row in rows(page, "Bolts")
                for column in ("executed", "acked", "failed", "emitted", "transferred")
                if number(row[column])
                != sum(task.get(column, 0) for task in totals[row["bolt"]].values())
            }

        # Each process reports up to a second later, and the page refreshes a moment after that.
        wait_until(lambda: not differing(), 30, "the page to show what the counters say")
        assert rows(page, "Spouts")[0]["tasks"] == "1/1"
        tasks = rows(page, "Bolt tasks")
        assert {(row["bolt"], row["process seen"], row["waiting"]) for row in tasks} == {
            ("split", "now", "0"),
            ("sink", "now", "0"),
        }
        assert sum(number(row["executed"]) for row in tasks if row["bolt"] == "sink") == 600
        assert {row["without a process"] for row in rows(page, "Bolts")} == {""}
        exposed = figures(url, running)
        assert exposed["tiercel_spout_acked_total", "lines"] == 200
        assert exposed["tiercel_bolt_executed_total", "sink"] == 600
        assert exposed["tiercel_spout_complete_latency_seconds_count", "lines"] == 200
        assert exposed["tiercel_queue_messages_dead", None] == 1
        expect(page.get_by_test_id("graph")).to_contain_text("split")
        expect(page.get_by_test_id("depths")).to_contain_text("pending trees")
        expect(page.get_by_test_id("latency")).to_contain_text("p99")

        def fault():
            [found] = [row for row in rows(page, "Errors") if row["component"] == "split"]
            return found

        assert "<b>cannot split poison</b>" in fault()["reason"]
        # A process reports the kinds of its errors after the errors.
        wait_until(lambda: fault()["times"] != "2 kept", 30, "the errors of a kind to be counted")
        assert number(fault()["times"]) == 2, "each failure once, although its spout reports it too"
        assert {row["host"] for row in rows(page, "Processes")} == {socket.gethostname()}
        [code] = {row["code"] for row in rows(page, "Processes")}
        assert re.fullmatch("[0-9a-f]{8}", code), "driver, spout and bolts run the same code"
        ran = " ".join(row["runs"] for row in rows(page, "Processes"))
        for part in ("the driver", "lines[1]", "split[", "sink["):
            assert part in ran
        expect(page.get_by_test_id("badge")).to_have_text("strained")
        expect(page.get_by_test_id("hurts")).to_contain_text(f"1 dead letter of queue {running}")

        letters = page.get_by_test_id("Dead letters")
        expect(letters).to_contain_text("cannot split poison")
        bodies = letters.locator("tbody tr td:last-child")
        expect(bodies).not_to_contain_text("poison")
        page.get_by_test_id("look").click()
        expect(
            page.get_by_text(f"Show the bodies of the dead letters of {running}")
        ).to_be_visible()
        give_token(page, "a wrong one")
        expect(page.get_by_text("wrong token").first).to_be_visible()
        expect(page.get_by_label("token")).to_have_value("a wrong one")
        expect(bodies).not_to_contain_text("poison")
        give_token(page)
        expect(bodies).to_contain_text("poison")
        letters.get_by_role("button", name="whole body").click()
        expect(page.get_by_test_id("whole body")).to_have_text("poison")
        page.get_by_role("button", name="close").click()
        expect(page.get_by_test_id("activate")).to_be_hidden()
        page.get_by_test_id("deactivate").click()  # the token was entered
        expect(page.get_by_text(f"{running} is deactivated, 0 messages in flight")).to_be_visible()
        expect(page.get_by_test_id("state")).to_contain_text("is deactivated")
        page.get_by_test_id("requeue all").click()
        expect(page.get_by_text(f"put 1 message back into {running}")).to_be_visible()
        wait_ready(services.amqp_url, running, 1)
        put(
            services.amqp_url,
            f"{running}.dead",
            b"d e f",
            b"\x00<b>no text</b>" + bytes(70_000),
            b"g h i",
        )
        requeue_the_third_of_three(page, running)
        wait_ready(services.amqp_url, running, 2)
        wait_ready(services.amqp_url, f"{running}.dead", 2)
        expect(page.get_by_test_id("deactivate")).to_be_hidden()
        page.get_by_test_id("activate").click()
        expect(page.get_by_test_id("state")).to_contain_text("is active")
        wait_until(
            lambda: rows(page, "Queues")[0]["dead letters"] == "3",
            300,
            "the poison to be dead again",
        )
        wait_until(
            lambda: [row["acked"] for row in rows(page, "Spouts")] == ["201"],
            300,
            "the chosen one to be acked",
        )


def requeue_the_third_of_three(page, queue):
    letters = page.get_by_test_id("Dead letters")
    expect(letters.locator("tbody tr")).to_have_count(3)
    expect(page.get_by_test_id("requeue chosen")).to_be_hidden()
    letters.get_by_role("button", name="whole body").nth(1).click()
    whole = page.get_by_test_id("whole body")
    expect(whole).to_contain_text("00000000  00 3c 62 3e")
    expect(whole).to_contain_text("… and 4,479 bytes more")
    expect(page.get_by_text("binary, 68.4 KiB")).to_be_visible()
    page.get_by_role("button", name="close").click()
    letters.locator("tbody tr").nth(2).get_by_role("checkbox").click()
    page.get_by_test_id("requeue chosen").click()
    expect(page.get_by_text(f"put 1 message back into {queue}").last).to_be_visible()
    expect(letters.locator("tbody tr")).to_have_count(2)


def announce(redis_url, name, bolts=3):
    builder = TopologyBuilder(name)
    builder.set_spout("lines", QueueSpout(name))
    for number_ in range(bolts):
        source = "lines" if number_ < 8 else f"bolt-{number_ - 8}"
        bolt = type("Named", (Bolt,), {"output_fields": "n long"})()
        builder.set_bolt(f"bolt-{number_}", bolt, 4).shuffle_grouping(source)
    Registry(redis_url).announce(builder.build())


def test_with_fifty_components_it_stays_quick_and_fits_a_phone(services, browser, tmp_path):
    name = unique("wide")
    announce(services.redis_url, name, bolts=49)
    declare_queue(services.amqp_url, WorkQueue(name=name))
    metrics = RedisMetrics(services.redis_url, name)
    counts = {
        "executed": 1,
        "acked": 1,
        "execute_ns": 5,
        "process_ns": 7,
        'from:["lines", "default"]': 1,
    }
    tasks = {(f"bolt-{at}", 2 + 4 * at + task): counts for at in range(49) for task in range(4)}
    with monitor(tmp_path, services.amqp_url, services.redis_url, services.management_url) as url:
        page = browser(f"{url}?topology={name}", width=390, dark=True)
        for expected in (4, 8, 12):
            metrics.add_all(tasks)
            wait_until(
                lambda expected=expected: (
                    {row["executed"] for row in rows(page, "Bolts")} == {str(expected)}
                ),
                30,
            )
        assert len(rows(page, "Bolts")) == 49
        put(services.amqp_url, f"{name}.dead", b"a" * 300)
        page.get_by_test_id("look").click()
        give_token(page)
        expect(page.get_by_test_id("Dead letters")).to_contain_text("aaa")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, (
            "only tables and the graph may be wider"
        )
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", ground)[:3])) < 60, "dark"
        letters = page.evaluate(
            "getComputedStyle(document.querySelector('[data-testid=graph] text')).fill"
        )
        assert min(map(int, re.findall(r"\d+", letters)[:3])) > 180, (
            "and the graph's text is light on it"
        )
        light = browser(f"{url}?topology={name}")
        ground = light.evaluate("getComputedStyle(document.body).backgroundColor")
        assert min(map(int, re.findall(r"\d+", ground)[:3])) > 200 or ground == "rgba(0, 0, 0, 0)"


def test_each_window_shows_what_was_counted_in_it(services, browser, tmp_path):
    name = unique("windows")
    announce(services.redis_url, name)
    for hours, count in ((0, 1), (2, 20), (12, 300), (72, 4_000)):
        metrics = RedisMetrics(
            services.redis_url, name, lambda hours=hours: time.time() - 3600 * hours
        )
        metrics.add("lines", 1, {"acked": count})
        metrics.add("bolt-0", 2, {"executed": count})
        metrics.close()
    with monitor(tmp_path, services.amqp_url, services.redis_url) as url:
        page = browser(f"{url}?topology={name}")
        for window, total in (
            ("10 min", "1"),
            ("3 h", "21"),
            ("1 day", "321"),
            ("all time", "4,321"),
            ("10 min", "1"),
        ):
            page.get_by_role("button", name=window).click()
            wait_until(
                lambda total=total: [row["acked"] for row in rows(page, "Spouts")] == [total],
                30,
                window,
            )
            assert rows(page, "Bolts")[0]["executed"] == total, window


def test_while_a_server_is_away_it_says_so_and_shows_what_was_last_until_it_is_back(
    rabbitmq, redis, browser, tmp_path
):
    broker = rabbitmq()
    store = redis()
    name = "away"
    announce(store.url, name)
    declare_queue(broker.url, WorkQueue(name=name))
    metrics = RedisMetrics(store.url, name)
    metrics.add("lines", 1, {"acked": 1_234})
    with monitor(tmp_path, broker.url, store.url) as url:
        page = browser(f"{url}?topology={name}")
        first = browser(url)
        wait_until(lambda: [row["acked"] for row in rows(page, "Spouts")] == ["1,234"])
        wait_until(lambda: [row["queue"] for row in rows(page, "Queues")] == [name])
        expect(page.get_by_test_id("problems")).to_be_hidden()

        store.stop()
        expect(page.get_by_test_id("problems")).to_contain_text("Redis does not answer")
        expect(first.get_by_test_id("problems")).to_contain_text("Redis does not answer")
        assert rows(first, "Topologies")[0]["health"] == "in trouble"
        assert rows(page, "Spouts")[0]["acked"] == "1,234"
        assert (
            'tiercel_up{server="redis"} 0.0'
            in urllib.request.urlopen(f"{url}metrics").read().decode()
        )
        store.start()
        announce(store.url, name)
        metrics.add("lines", 1, {"acked": 5})
        expect(page.get_by_test_id("problems")).to_be_hidden()

        broker.stop()
        expect(page.get_by_test_id("problems")).to_contain_text("nothing listens at amqp://")
        assert [row["queue"] for row in rows(page, "Queues")] == [name]
        metrics.add("lines", 1, {"acked": 1})
        broker.start()
        expect(page.get_by_test_id("problems")).to_be_hidden(timeout=60_000)
        [spout] = metrics.totals()["lines"].values()
        wait_until(lambda: number(rows(page, "Spouts")[0]["acked"]) == spout["acked"])
    metrics.close()


def test_a_page_of_another_name_is_refused(services, tmp_path):
    with monitor(tmp_path, services.amqp_url, services.redis_url) as url:
        request = urllib.request.Request(url, headers={"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(request)


@pytest.mark.slow
def test_prometheus_scrapes_it_and_its_alerts_fire(services, tmp_path):
    install_missing("prometheus")
    promtool = find_system_program("promtool")
    prometheus = find_system_program("prometheus")
    name = unique("scraped")
    announce(services.redis_url, name)
    declare_queue(services.amqp_url, WorkQueue(name=name))
    put(services.amqp_url, f"{name}.dead", b"x")
    RedisMetrics(services.redis_url, name).add(
        "lines", 1, {"acked": 3, "complete_us": 3000, "complete_ms_bucket:0": 3}
    )
    presences = RedisPresences(services.redis_url, name)
    spouts = SpoutSeats(presences)
    lease = Lease(presences)
    inboxes = RedisInboxes(RedisServers((services.redis_url,)), name)
    inboxes.adopt("run", [2])
    sent = itertools.count(1)
    # More than a few tuples wait from the first scrape on.
    append(inboxes, next(sent), parcel(b"chunk", target=2, tuples=[500]))
    with ExitStack() as ended:
        ended.enter_context(closing(inboxes))
        url = ended.enter_context(
            monitor(tmp_path, services.amqp_url, services.redis_url, services.management_url)
        )
        with urllib.request.urlopen(f"{url}metrics") as response:
            checked = subprocess.run(
                [promtool, "check", "metrics"],
                input=response.read(),
                capture_output=True,
                check=False,
            )
        assert (checked.returncode, checked.stderr) == (0, b"")
        target = re.search(r"//(.*)/", url)[1]
        config = (
            (ROOT / "compose/prometheus.yml")
            .read_text()
            .replace("monitor:8710", target)
            .replace("15s", "1s")
        )
        (tmp_path / "prometheus.yml").write_text(config)
        (tmp_path / "alerts.yml").write_text(
            re.sub(r"for: .*", "for: 0s", (ROOT / "compose/alerts.yml").read_text())
        )
        port = free_port()
        arguments = [
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
        ]
        argv = [str(prometheus), *arguments, f"--web.listen-address=127.0.0.1:{port}"]
        process = GuardedProcess(Launch(argv=argv, output=tmp_path / "prometheus.log"))
        try:
            api = f"http://127.0.0.1:{port}/api/v1"
            acked = f'query?query=tiercel_spout_acked_total{{topology="{name}"}}'
            wait_until(
                lambda: [each["value"][1] for each in asked(api, acked)["result"]] == ["3"],
                300,
                "a scrape",
            )

            def fire(fired):
                # Repeated, because a spout that is silent for ten seconds counts as gone; and the
                # inbox only grows.
                spouts.report("worker", 1, Presence(active=True, pending=1, oldest_s=99))
                append(inboxes, next(sent), parcel(b"chunk", target=2, tuples=[1]))
                return fired <= alerts(asked(api, "alerts"), name)

            fired = {
                "TiercelDeadLetters",
                "TiercelPendingTooOld",
                "TiercelNoConsumers",
                "TiercelNoDriver",
                "TiercelInboxGrowing",
            }
            wait_until(lambda: fire(fired), 300, f"{fired} to fire")
            # A driver is present, and still no process for any bolt task.

            def unattended():
                lease.take(Holder(driver="d", shape="s"))
                return fire({"TiercelTaskWithoutProcess"})

            wait_until(unattended, 300, "a task without a process to be noticed")

            def unfit():
                lease.take(Holder(driver="d", trouble="executor 1 on h cannot start Python 'p'"))
                return fire({"TiercelNoExecutor"})

            wait_until(unfit, 300, "executors that cannot run bolts to be noticed")
            assert "TiercelMonitorGone" not in alerts(asked(api, "alerts"), None)
            for question in dashboard_questions(name):
                wait_until(
                    lambda question=question: answered(api, question),
                    300,
                    f"an answer to {question}",
                )
            ended.close()
            wait_until(
                lambda: "TiercelMonitorGone" in alerts(asked(api, "alerts"), None),
                300,
                "its end to be noticed",
            )
        finally:
            process.kill()
            presences.close()


def dashboard_questions(name):
    """Return the dashboard's queries to Prometheus about one topology."""
    found = []

    def search(part):
        if isinstance(part, dict):
            found.extend(part[key] for key in ("expr", "query") if isinstance(part.get(key), str))
            part = list(part.values())
        if isinstance(part, list):
            for each in part:
                search(each)

    search(json.loads((ROOT / "compose/grafana-dashboard.json").read_text()))
    assert len(found) > 5
    found = [
        re.sub(r"label_values\((.*),.*\)", r"\1", each) for each in found if each != "prometheus"
    ]
    return [each.replace("$topology", name).replace("$__rate_interval", "1m") for each in found]


def answered(api, question):
    """Return True if Prometheus has any series for the query. Raises if it cannot parse it."""
    with urllib.request.urlopen(
        f"{api}/query?{urllib.parse.urlencode({'query': question})}"
    ) as response:
        return json.load(response)["data"]["result"]


def asked(api, question):
    try:
        with urllib.request.urlopen(f"{api}/{question}") as response:
            return json.load(response)["data"]
    except OSError:
        return {"result": [], "alerts": []}


def alerts(data, name):
    return {
        each["labels"]["alertname"]
        for each in data["alerts"]
        if name in (each["labels"].get("topology"), each["labels"].get("queue"))
        and each["state"] == "firing"
    }


def test_the_dashboard_asks_for_figures_that_there_are(services, tmp_path):
    name = unique("dashboard")
    announce(services.redis_url, name)
    declare_queue(services.amqp_url, WorkQueue(name=name))
    dashboard = (ROOT / "compose/grafana-dashboard.json").read_text()
    asked_for = set(re.findall(r"\btiercel_\w+", dashboard)) | set(
        re.findall(r"\btiercel_\w+", (ROOT / "compose/alerts.yml").read_text())
    )
    with monitor(tmp_path, services.amqp_url, services.redis_url, services.management_url) as url:
        there = {metric for metric, _ in figures(url, name)} | {"tiercel_up"}
    assert asked_for <= there, asked_for - there
    assert json.loads(dashboard)["title"] == "tiercel"
