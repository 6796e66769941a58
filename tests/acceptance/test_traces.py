"""One trace from a publisher through two topologies, with a real OTLP receiver."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.acceptance import traced
from tests.support.broker import put
from tests.support.children import python_workers
from tests.support.monitors import chromium
from tests.support.otlp import receiving
from tests.support.running import running
from tests.support.waiting import wait_until
from tests.support.zipkin import Zipkin
from tiercel.workers.config import Settings
from tiercel.workers.local.run import LocalRun

PUBLISHER = "b7ad6b7169203331"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-{PUBLISHER}-01"
UNSAMPLED = "00-11111111111111111111111111111111-2222222222222222-00"


class Service:
    """Prices items; a slow call waits until the test releases it."""

    def __init__(self):
        self.parents = {}
        self.asked = threading.Event()
        self.go_on = threading.Event()


@contextmanager
def priced(folder):
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            item = self.path.strip("/")
            service.parents.setdefault(item, []).append(self.headers["traceparent"])
            if item == "slow" and not service.go_on.is_set():
                service.asked.set()
                service.go_on.wait(60)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"5")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / traced.SERVICE).write_text(f"http://127.0.0.1:{server.server_port}")
    yield service
    server.shutdown()
    server.server_close()


def pricing(receiver, folder, monkeypatch):
    """Run the first of the two topologies, with its spans going to the receiver."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    return running(
        "tests.acceptance.traced:first",
        folder,
        traced.FOLDER,
        queues=(traced.ORDERS, traced.INVOICES),
    )


def booked(folder):
    file = folder / "booked"
    return set(file.read_text().split()) if file.exists() else set()


@pytest.mark.quick
@pytest.mark.promised
@pytest.mark.timeout(400)
def test_one_trace_leads_through_two_topologies_and_the_death_of_a_worker(tmp_path, monkeypatch):
    with (
        receiving() as receiver,
        priced(tmp_path) as service,
        pricing(receiver, tmp_path, monkeypatch) as stack,
    ):
        settings = Settings.load(master="local[2]").with_services(
            stack.amqp_url, stack.redis_url, stack.rabbitmq.management_url
        )
        second = LocalRun("tests.acceptance.traced:second", traced.second(), settings)
        with second:
            put(
                stack.amqp_url,
                traced.ORDERS,
                b'{"items": "unseen"}',
                headers={"traceparent": UNSAMPLED},
            )
            wait_until(lambda: booked(tmp_path) == {"unseen"}, 120, "the first invoice")
            put(
                stack.amqp_url,
                traced.ORDERS,
                b'{"items": "quick slow"}',
                headers={"traceparent": PARENT},
                message_id="order-1",
            )
            assert service.asked.wait(60)
            # A killed process loses the spans that it has not sent: wait for all of the quick
            # order's, up to the order's own span, which ends with the slow one.
            wait_until(
                lambda: max(map(len, paths(receiver, "execute book")), default=0) == 6,
                60,
                "the quick one's spans",
            )
            for worker in python_workers(stack.run.driver.pid):
                os.kill(worker, signal.SIGKILL)
            service.go_on.set()
            wait_until(lambda: booked(tmp_path) == {"unseen", "quick", "slow"}, 120, "all invoices")
            wait_until(lambda: len(paths(receiver, "execute book")) == 2, 60, "the last spans")
    check(receiver, service)


def paths(receiver, name, trace_id=TRACE_ID):
    return [receiver.path_of(span) for span in receiver.named(name) if span.trace_id == trace_id]


def check_paths(found, whole):
    """Check that each path is whole, or the end of one: a killed worker loses its last spans."""
    assert whole in found
    assert all(path == whole[-len(path) :] for path in found)


def check(receiver, service):
    # The unsampled order has no span in the first topology.
    assert UNSAMPLED[3:35] not in {span.trace_id for span in receiver.spans}
    upstream = ["process orders", "execute split", "execute price"]
    downstream = [*upstream, "execute publish", "create invoices", "process invoices"]
    check_paths(paths(receiver, "execute book"), [*downstream, "execute book"])
    check_paths(paths(receiver, "GET"), [*upstream, "GET"])
    for root in receiver.named("process orders"):
        assert root.parent_id == PUBLISHER
        if root.trace_id != TRACE_ID:
            continue
        assert root.attributes["messaging.system"] == "rabbitmq"
        assert root.attributes["messaging.message.id"] == "order-1"
    # The service got the context of the client's span, within the trace.
    assert {parent.split("-")[1] for parent in service.parents["slow"]} == {TRACE_ID}
    gets = {span.span_id for span in receiver.named("GET")}
    assert service.parents["slow"][-1].split("-")[2] in gets


@pytest.mark.rest
@pytest.mark.promised
@pytest.mark.timeout(400)
def test_a_viewer_shows_a_trace_from_the_publisher_through_three_bolts(
    tmp_path, monkeypatch, pytestconfig
):
    with receiving() as receiver, priced(tmp_path) as service, Zipkin(tmp_path) as viewer:
        service.go_on.set()
        with pricing(receiver, tmp_path, monkeypatch) as stack:
            for number in (1, 2):  # the first one warms up
                trace_id = f"{number:032x}"
                put(
                    stack.amqp_url,
                    traced.ORDERS,
                    b'{"items": "pen paper"}',
                    headers={"traceparent": f"00-{trace_id}-{PUBLISHER}-01"},
                )
                wait_until(
                    lambda trace_id=trace_id: (
                        len(paths(receiver, "create invoices", trace_id)) == 2
                        and len(paths(receiver, "process orders", trace_id)) == 1
                    ),
                    120,
                    "a whole trace",
                )
        viewer.take(receiver.spans)
        spans = wait_until(lambda: viewer.trace(trace_id), 30, "the trace in the viewer")
        names = Counter(span["name"] for span in spans)
        assert names == {
            "process orders": 1,
            "execute split": 1,
            "execute price": 2,
            "get": 2,
            "execute publish": 2,
            "create invoices": 2,
        }
        [root] = [span for span in spans if span["name"] == "process orders"]
        assert root["parentId"] == PUBLISHER
        look(f"{viewer.url}/zipkin/traces/{trace_id}", pytestconfig.getoption("--screenshots"))


def look(address, folder):
    """View the bolts on the viewer's page, and save a picture if a folder is given."""
    with chromium() as open_page:
        page = open_page(address)
        for name in ("execute split", "execute price", "execute publish"):
            expect(page.get_by_text(name).first).to_be_visible()
        if folder:
            page.set_viewport_size({"width": 1280, "height": 640})
            page.wait_for_load_state("networkidle")
            page.screenshot(path=Path(folder) / "trace.png")
