"""Attacks on the page of ``tiercel monitor`` in a real browser: markup in the data that it shows,
and strangers' pages.
"""

import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import expect

from tests.support.broker import put, unique
from tests.support.monitors import chromium, give_token, monitor, visit
from tests.support.waiting import wait_until
from tiercel import BasicBolt, QueueSpout, TopologyBuilder, WorkQueue, declare_queue
from tiercel.acker.metrics.contract import ErrorReport
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.workers.control.registry import Registry

pytestmark = pytest.mark.timeout(900)

# Each way in which markup becomes a script sets its own number.
IMAGE = '<img src=x onerror="window.pwned=1">'
SCRIPT = "<script>window.pwned=2</script>"
VUE = "{{constructor.constructor('window.pwned=3')()}}"
MARKUP = f"{IMAGE}{SCRIPT}{VUE}`${{window.pwned=4}}"
# A topology's name may have no blanks and no braces.
TAG = "<img/src=x/onerror=window.pwned=5>"
EVERYWHERE = ("--host", "0.0.0.0")


@pytest.fixture
def browser():
    with chromium("--host-resolver-rules=MAP evil.example 127.0.0.1") as open_page:
        yield open_page


@pytest.fixture
def name(services):
    """A topology whose name, components, reasons, queue and dead letters are markup."""
    name = unique(f"words{TAG}")
    builder = TopologyBuilder(name)
    builder.set_spout(f"lines{MARKUP}", QueueSpout(name))
    builder.set_bolt(f"bolt{MARKUP}", BasicBolt()).shuffle_grouping(f"lines{MARKUP}")
    with closing(Registry(services.redis_url)) as registry:
        registry.announce(builder.build())
    declare_queue(services.amqp_url, WorkQueue(name=name))
    headers = {"x-tiercel-reason": f"ValueError: {MARKUP}", "x-tiercel-queue": f"other{MARKUP}"}
    put(services.amqp_url, f"{name}.dead", f"customer 4711 {MARKUP}".encode(), headers=headers)
    with closing(RedisMetrics(services.redis_url, name)) as metrics:
        metrics.add(f"lines{MARKUP}", 1, {"emitted": 3, "acked": 2})
        metrics.add(f"bolt{MARKUP}", 2, {"executed": 3, f'from:["lines{MARKUP}", "default"]': 1})
        metrics.report(
            [
                ErrorReport(
                    at=datetime.now(UTC),
                    component=f"bolt{MARKUP}",
                    task=2,
                    message=f"ValueError: {MARKUP}",
                )
            ]
        )
    return name


def show_everything(page, name):
    """Show everything of the topology that the page can show."""
    expect(page.get_by_test_id("state")).to_contain_text(name)
    page.get_by_test_id("topology").click()
    expect(page.get_by_role("option").filter(has_text=name)).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_test_id("look").click()
    give_token(page)
    letters = page.get_by_test_id("Dead letters")
    expect(letters).to_contain_text(f"customer 4711 {MARKUP}"[:100])
    expect(letters).to_contain_text(f"ValueError: {MARKUP}")
    letters.get_by_role("button", name="whole body").click()
    expect(page.get_by_test_id("whole body")).to_have_text(f"customer 4711 {MARKUP}")
    page.get_by_role("button", name="close").click()
    expect(page.get_by_test_id("Errors")).to_contain_text(f"ValueError: {MARKUP}")
    expect(page.get_by_test_id("graph")).to_contain_text("<img")
    box = page.get_by_test_id("depths").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.get_by_test_id("graph").locator("g.bolt").click()
    side = page.get_by_test_id("component")
    expect(side).to_contain_text(f"bolt bolt{MARKUP}")
    expect(side).to_contain_text(f"ValueError: {MARKUP}")
    side.get_by_role("button", name="close").click()
    expect(side).to_be_hidden()
    page.get_by_test_id("deactivate").click()
    expect(page.get_by_text("does not run now")).to_contain_text("window.pwned")


def test_markup_in_names_reasons_and_bodies_stays_text(services, name, browser, tmp_path):
    with monitor(tmp_path, services.amqp_url, services.redis_url, services.management_url) as url:
        page = browser(f"{url}?topology={quote(name)}")
        show_everything(page, name)
        assert page.evaluate("window.pwned") is None
        assert page.locator("img[onerror]").count() == 0

        # A check that the test would notice a script; even markup within the page cannot run one.
        page.evaluate("markup => document.body.insertAdjacentHTML('beforeend', markup)", IMAGE)
        wait_until(
            lambda: any("inline event handler" in said for said in browser.wrong),
            30,
            "the policy to forbid it",
        )
        assert page.evaluate("window.pwned") is None
        browser.wrong.clear()
        other = browser("about:blank")
        other.evaluate("markup => document.body.insertAdjacentHTML('beforeend', markup)", IMAGE)
        wait_until(
            lambda: other.evaluate("window.pwned") == 1, 30, "it to run where nothing forbids it"
        )


def test_markup_in_addresses_and_on_the_first_page_stays_text(services, name, browser, tmp_path):
    with monitor(tmp_path, services.amqp_url, services.redis_url, services.management_url) as url:
        page = browser(url)
        expect(page.get_by_role("link", name=name)).to_be_visible()
        page.get_by_role("link", name=name).click()
        expect(page.get_by_test_id("state")).to_contain_text(name)
        for thing in (
            {"topology": MARKUP},
            {"topology": name, "component": MARKUP},
            {"topology": name, "component": f"bolt{MARKUP}"},
            {"topology": name, "error": MARKUP},
            {"topology": name, "queue": "x; echo pwned", "letter": MARKUP},
            {"topology": name, "queue": name, "letter": "$(echo pwned)"},
        ):
            visit(page, f"{url}?{urlencode(thing)}")
            expect(page.get_by_test_id("state")).not_to_have_text("")
            expect(page.get_by_text("echo pwned")).to_have_count(0)
            assert page.evaluate("window.pwned") is None
            assert page.locator("img[onerror]").count() == 0


def port_of(url):
    return url.rstrip("/").rpartition(":")[2]


def test_a_name_that_a_stranger_had_rebound_to_us_shows_nothing(services, name, browser, tmp_path):
    with monitor(tmp_path, services.amqp_url, services.redis_url, options=EVERYWHERE) as url:
        page = browser("about:blank")
        for path in ("", "metrics"):
            answer = visit(page, f"http://evil.example:{port_of(url)}/{path}")
            assert (answer.status, "words" in answer.text()) == (400, False)
        browser.wrong.clear()  # the page requested the foreign host on purpose
        assert visit(page, url.replace("127.0.0.1", "localhost")).status == 200


ATTACK = """<!doctype html><script>
const there = "127.0.0.1:PORT", said = {};
window.said = said;
const socket = new WebSocket(`ws://${there}/_nicegui_ws/socket.io/?EIO=4&transport=websocket`);
socket.onopen = () => said.socket = "open";
socket.onerror = () => said.socket = "refused";
fetch(`http://${there}/metrics`).then(a => a.text())
  .then(t => said.fetch = t, () => said.fetch = "refused");
const image = new Image();
image.onload = () => said.image = "shown";
image.onerror = () => said.image = "refused";
image.src = `http://${there}/favicon.ico`;
const script = document.createElement("script");
script.onload = () => said.script = "run";
script.onerror = () => said.script = "refused";
script.src = `http://${there}/metrics`;
document.head.append(script);
</script><iframe src="http://127.0.0.1:PORT/"></iframe>"""


@contextmanager
def page_of_a_stranger(port):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(ATTACK.replace("PORT", port).encode())

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://evil.example:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_the_page_of_a_stranger_gets_nothing_from_ours(services, name, browser, tmp_path):
    with (
        monitor(tmp_path, services.amqp_url, services.redis_url, options=EVERYWHERE) as url,
        page_of_a_stranger(port_of(url)) as stranger,
    ):
        page = browser(stranger)
        wait_until(
            lambda: len(page.evaluate("window.said")) == 4,
            30,
            f"all attempts to end: {page.evaluate('window.said')}",
        )
        assert set(page.evaluate("window.said").values()) == {"refused"}
        frame = next(frame for frame in page.frames if frame.parent_frame)
        assert "tiercel" not in frame.content()
        browser.wrong.clear()
