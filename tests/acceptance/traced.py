"""Two topologies in a row: orders are read, split and priced by a service, and become messages of
the second topology.
"""

import os
import urllib.request
from pathlib import Path

from opentelemetry import propagate, trace

from tiercel import BasicBolt, Config, QueueSink, QueueSpout, TopologyBuilder

ORDERS = "orders"
INVOICES = "invoices"
# Variable that names the folder for booked invoices; and the file with the service's address.
FOLDER = "TIERCEL_TEST_TRACED"
SERVICE = "service"


class Split(BasicBolt):
    output_fields = "item string"

    def execute(self, tup, collector):
        for item in tup["items"].split():
            collector.emit([item])


class Price(BasicBolt):
    """Calls a service, as an instrumented HTTP client does."""

    output_fields = "item string, price string"

    def execute(self, tup, collector):
        address = (Path(os.environ[FOLDER]) / SERVICE).read_text()
        tracer = trace.get_tracer("a client of HTTP")
        with tracer.start_as_current_span("GET", kind=trace.SpanKind.CLIENT):
            headers = {}
            propagate.inject(headers)
            request = urllib.request.Request(f"{address}/{tup['item']}", headers=headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                collector.emit([tup["item"], response.read().decode()])


class Book(BasicBolt):
    def execute(self, tup, collector):
        with (Path(os.environ[FOLDER]) / "booked").open("a") as booked:
            booked.write(f"{tup['item']}\n")


def first():
    builder = TopologyBuilder("pricing", Config(message_timeout_secs=60, shutdown_grace_secs=5))
    builder.set_spout("orders", QueueSpout(ORDERS, fields="items string", format="json"))
    builder.set_bolt("split", Split()).shuffle_grouping("orders")
    builder.set_bolt("price", Price(), config={"threads": 2}).shuffle_grouping("split")
    builder.set_bolt("publish", QueueSink(INVOICES)).shuffle_grouping("price")
    return builder.build()


def second():
    builder = TopologyBuilder("booking", Config(message_timeout_secs=60, shutdown_grace_secs=5))
    builder.set_spout("invoices", QueueSpout(INVOICES, fields="item string, price string"))
    builder.set_bolt("book", Book()).shuffle_grouping("invoices")
    return builder.build()
