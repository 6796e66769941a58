"""The example with an HTTP server, in the test kit: a real server, real sockets."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.reasons import unplaced
from tiercel import TopologyBuilder
from tiercel.examples import webhooks
from tiercel.testing import FeederSpout, LocalCluster


class Partners(BaseHTTPRequestHandler):
    """Partners that are busy the first time they get an event; one partner is gone."""

    seen: Counter[tuple[str, str]]

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = (self.path, body["event"])
        self.seen[key] += 1
        first = self.seen[key] == 1
        answer = {"/busy": 429 if first else 204, "/shaky": 500 if first else 204, "/gone%2F": 410}
        self.send_response(answer.get(self.path, 204))
        self.send_header("Retry-After", "7")
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def port():
    Partners.seen = Counter()
    with ThreadingHTTPServer(("127.0.0.1", 0), Partners) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def cluster_with(port, *events):
    spec = webhooks.topology().bolts["deliver"]
    builder = TopologyBuilder("webhooks")
    feeder = FeederSpout(fields="partner string, event string")
    for partner, event in events:
        feeder.feed([partner, event], (partner, event))
    builder.set_spout("events", feeder)
    config = {**spec.overrides, "port": port}
    builder.set_bolt("deliver", spec.bolt, config=config).shuffle_grouping("events")
    return LocalCluster(builder.build())


def test_events_are_posted_and_a_busy_partner_gets_them_when_it_says(port):
    with cluster_with(port, ("mews", "back"), ("busy", "back"), ("gone/", "back")) as cluster:
        cluster.run_until_idle()
        assert cluster.acked("events") == [("mews", "back")]
        [reason] = cluster.fail_reasons("events")
        assert unplaced(reason) == "deliver[2]: DeliveryError: gone/ answers 410"
        assert cluster.retried_later("events") == [(("busy", "back"), 7.0)]
        cluster.advance_time(7)
        assert cluster.acked("events") == [("mews", "back"), ("busy", "back")]
    assert Partners.seen == {("/mews", "back"): 1, ("/busy", "back"): 2, ("/gone%2F", "back"): 1}


def test_a_partner_with_many_events_holds_no_other_one_up(port):
    events = [("mews", str(number)) for number in range(100)]
    with cluster_with(port, *events, ("eyrie", "first")) as cluster:
        cluster.run_until_idle()
        assert ("eyrie", "first") in cluster.acked("events")
        assert len(cluster.acked("events")) <= 5
        cluster.advance_time(5)
        assert len(cluster.acked("events")) == 101


def test_an_event_is_posted_again_in_place_when_the_partners_server_fails(port):
    with cluster_with(port, ("shaky", "back"), ("mews", "back")) as cluster:
        cluster.run_until_idle()
        assert cluster.acked("events") == [("mews", "back")]
        cluster.advance_time(5)
        assert cluster.acked("events") == [("mews", "back"), ("shaky", "back")]
        assert cluster.failed("events") == []
    assert Partners.seen["/shaky", "back"] == 2
