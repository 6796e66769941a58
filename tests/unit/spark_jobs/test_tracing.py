"""OpenTelemetry: parents in headers, spans of bolts and batches, and misbehaving receivers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from tenacity import wait_fixed

from tests.support.traces import recorded
from tests.support.waiting import wait_until
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    QueueSink,
    Reject,
    Retry,
    RetryLater,
    TopologyBuilder,
)
from tiercel.acker.inbox.contexts import CONTEXT_BYTES
from tiercel.queues.broker.frames import Headers
from tiercel.spark_jobs.logs.formatters import JsonFormatter, TextFormatter
from tiercel.spark_jobs.tracing import process
from tiercel.spark_jobs.tracing.spans import SpanContext, Tracing, parent_in
from tiercel.spark_jobs.tracing.task import span_id_of
from tiercel.testing import FeederSpout, LocalCluster

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C


# -- the header ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        pytest.param(None, None, id="no headers"),
        pytest.param({}, None, id="none"),
        pytest.param({"traceparent": ""}, None, id="empty"),
        pytest.param({"traceparent": "00-00-00-01"}, None, id="short"),
        pytest.param({"traceparent": PARENT + "x" * 100_000}, None, id="huge"),
        pytest.param({"traceparent": PARENT.replace("0af7", "zzzz")}, None, id="not hexadecimal"),
        pytest.param({"traceparent": "00-" + "0" * 32 + PARENT[35:]}, None, id="all zeros"),
        pytest.param({"traceparent": b"\xff\xfe"}, None, id="bytes"),
        pytest.param({"traceparent": 7}, None, id="a number"),
        pytest.param({"traceparent": [PARENT, PARENT]}, None, id="a list"),
        pytest.param({"traceparent": PARENT}, (TRACE_ID, 1, ""), id="good"),
        pytest.param({"traceparent": PARENT[:-1] + "0"}, (TRACE_ID, 0, ""), id="not sampled"),
        pytest.param(
            {"traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE"},
            (TRACE_ID, 1, "congo=t61rcWkgMzE"),
            id="with a state",
        ),
        pytest.param(
            {"traceparent": PARENT, "tracestate": "a=" + "x" * 100_000},
            (TRACE_ID, 1, ""),
            id="with a huge state",
        ),
    ],
)
def test_the_parent_is_read_from_the_headers_and_bad_ones_are_none(headers, found):
    for given in (headers, None if headers is None else Headers.of(headers)):
        context = parent_in(given)
        assert (context and (context.trace_id, context.flags, context.state)) == found


def test_of_two_traceparents_the_first_counts():
    other = PARENT.replace("0af7", "1234")
    twice = Headers(
        Headers.of({"traceparent": PARENT}).wire + Headers.of({"traceparent": other}).wire
    )
    context = parent_in(twice)
    assert context is not None
    assert context.trace_id == TRACE_ID


def test_a_context_travels_as_bytes():
    context = SpanContext(TRACE_ID, 77, 1, "congo=t61")
    assert SpanContext.of(context.packed()) == context
    assert context.parent == f"00-{TRACE_ID:032x}-000000000000004d-01"
    assert SpanContext.of(b"short") is None
    assert SpanContext.of(bytes(25)) is None


def test_a_state_that_a_sampler_made_too_long_does_not_travel():
    assert len(SpanContext(TRACE_ID, 77, 1, "a=" + "x" * 510).packed()) == CONTEXT_BYTES
    travelled = SpanContext.of(SpanContext(TRACE_ID, 77, 1, "a=" + "x" * 511).packed())
    assert travelled == SpanContext(TRACE_ID, 77, 1)


# -- spans of bolts --------------------------------------------------------------------------------


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup["sentence"].split():
            collector.emit([word])


class Upper(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        with trace.get_tracer("http", tracer_provider=PROVIDER[0]).start_as_current_span("GET"):
            collector.emit([tup["word"].upper()])


PROVIDER = [None]
CALL = ["process in", "execute split", "execute bolt"]


class AsyncUpper(AsyncBolt):
    output_fields = "word string"

    async def execute(self, tup, collector):
        await asyncio.sleep(1)
        with trace.get_tracer("http", tracer_provider=PROVIDER[0]).start_as_current_span("GET"):
            await asyncio.sleep(1)
            collector.emit([tup["word"].upper()])


class ByHand(Bolt):
    """Acks and fails explicitly, in a later call."""

    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup["word"]], tup)
        if tup["word"] == "bad":
            collector.fail(tup, "by hand")
        else:
            collector.ack(tup)


class Judging(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        match tup["word"]:
            case "bad":
                raise ValueError("a bad word")
            case "later":
                raise RetryLater(60, "busy")
            case "never":
                raise Reject("unknown")
        collector.emit([tup["word"]])


class Batches(BatchBolt):
    output_fields = "word string"
    batch_size = 3

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            collector.emit([tup["word"]], tup)


class Rows(ArrowBolt):
    output_fields = "word string"

    def execute(self, batch, collector):
        collector.emit(batch, range(batch.num_rows))


class Last(BasicBolt):
    def execute(self, tup, collector):
        pass


def in_a_row(bolt, *, threads=None):
    feeder = FeederSpout(fields="sentence string")
    builder = TopologyBuilder("traced")
    builder.set_spout("in", feeder)
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("in")
    config = {} if threads is None else {"threads": threads}
    declared = builder.set_bolt("bolt", bolt, parallelism=2, config=config)
    declared.fields_grouping("split", "word")
    builder.set_bolt("last", Last()).global_grouping("bolt")
    return feeder, builder.build()


def ran(feeder, topology, *sentences):
    with LocalCluster(topology) as cluster:
        for number, sentence in enumerate(sentences):
            feeder.feed([sentence], number)
        cluster.run_until_idle()
        cluster.advance_time(10)
        cluster.run_until_idle()
        return cluster.acked("in"), cluster.failed("in")


@pytest.mark.parametrize(
    ("bolt", "threads"),
    [
        pytest.param(Upper(), None, id="one by one"),
        pytest.param(AsyncUpper(), None, id="coroutines"),
        pytest.param(Upper(), 2, id="threads"),
    ],
)
def test_each_execute_has_a_span_below_that_of_the_tuple_that_emitted_it(bolt, threads):
    feeder, topology = in_a_row(bolt, threads=threads)
    with recorded() as spans:
        PROVIDER[0] = spans.provider
        acked, _ = ran(feeder, topology, "a b")
    assert acked == [0]
    assert len({span.context.trace_id for span in spans.spans}) == 1
    assert len(spans.named("execute last")) == 2
    for last in spans.named("execute last"):
        assert spans.path_of(last) == [*CALL, "execute last"]
    # A library's span in a call nests in the call's span.
    for get in spans.named("GET"):
        assert spans.path_of(get) == [*CALL, "GET"]
    whole = spans.one("process in")
    assert all(span.end_time <= whole.end_time for span in spans.spans)
    assert not {span.status.status_code for span in spans.spans} - {trace.StatusCode.UNSET}


@pytest.mark.parametrize("bolt", [Batches(), Rows()], ids=["batch", "rows"])
def test_a_call_with_many_tuples_has_one_span_with_links(bolt):
    feeder = FeederSpout(fields="word string")
    builder = TopologyBuilder("traced")
    builder.set_spout("in", feeder)
    builder.set_bolt("bolt", bolt).global_grouping("in")
    builder.set_bolt("last", Last()).global_grouping("bolt")
    with recorded() as spans:
        ran(feeder, builder.build(), "a", "b", "c")
    batch = spans.one("execute_batch bolt")
    messages = {span.context.span_id for span in spans.named("process in")}
    assert len(messages) == 3
    assert {batch.parent.span_id, *(link.context.span_id for link in batch.links)} == messages
    assert batch.attributes["messaging.batch.message_count"] == 3
    # Emissions of other traces are children of the span that their tuple came from.
    parents = {span.parent.span_id for span in spans.named("execute last")}
    assert parents == {batch.context.span_id, *(link.context.span_id for link in batch.links)}
    assert len(parents) == len({span.context.trace_id for span in spans.named("execute last")}) == 3


@pytest.mark.parametrize(
    ("word", "event", "more"),
    [
        ("bad", "failed", {}),
        ("later", "retry_later", {"tiercel.seconds": 60}),
        ("never", "rejected", {}),
    ],
)
@pytest.mark.parametrize("threads", [None, 2])
def test_failures_are_events_with_the_reason(word, event, more, threads):
    feeder, topology = in_a_row(Judging(), threads=threads)
    with recorded() as spans:
        ran(feeder, topology, word)
    for name in ("execute bolt", "process in"):
        span = spans.one(name)
        assert span.status.status_code is trace.StatusCode.ERROR
        found = next(one for one in span.events if one.name == event)
        assert found.attributes["tiercel.reason"]
        for key, value in more.items():
            assert found.attributes[key] == value


class Stubborn(BasicBolt):
    output_fields = "word string"
    retry = Retry(attempts=3, wait=wait_fixed(1))

    def prepare(self, config, context):
        self.calls = 0

    def execute(self, tup, collector):
        self.calls += 1
        if self.calls < 3:
            raise ValueError("not yet")
        collector.emit([tup["word"]])


class AsyncStubborn(AsyncBolt):
    output_fields = "word string"
    retry = Stubborn.retry
    prepare = Stubborn.prepare

    async def execute(self, tup, collector):
        Stubborn.execute(self, tup, collector)


@pytest.mark.parametrize(
    ("bolt", "threads"),
    [
        pytest.param(Stubborn(), None, id="one by one"),
        pytest.param(AsyncStubborn(), None, id="coroutines"),
        pytest.param(Stubborn(), 2, id="threads"),
    ],
)
def test_each_attempt_at_a_tuple_has_a_span_of_its_own(bolt, threads):
    """A viewer shows spans with one id as one."""
    feeder, topology = in_a_row(bolt, threads=threads)
    with recorded() as spans:
        acked, _ = ran(feeder, topology, "a")
    assert acked == [0]
    attempts = spans.named("execute bolt")
    assert len({span.context.span_id for span in attempts}) == len(attempts) == 3
    assert sorted(len(span.events) for span in attempts) == [0, 2, 2]
    assert {spans.parent_of(span).name for span in attempts} == {"execute split"}
    assert spans.path_of(spans.one("execute last")) == [*CALL, "execute last"]


class UnreadableError(Exception):
    def __str__(self):
        raise LookupError


class Leaking(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        if tup["word"] == "unreadable":
            raise UnreadableError
        raise OSError("amqp://shop:s3cret@rabbit has no \udcff" + "x" * 100_000)


@pytest.mark.parametrize("threads", [None, 2])
def test_the_text_of_an_error_in_a_span_has_no_password_and_can_be_sent(threads, caplog):
    """A surrogate in one span would cost all spans of its batch."""
    caplog.set_level(logging.CRITICAL)  # no surrogate can travel in a report of pytest-xdist
    feeder, topology = in_a_row(Leaking(), threads=threads)
    with recorded() as spans:
        _, failed = ran(feeder, topology, "leak", "unreadable")
    assert set(failed) == {0, 1}
    texts = [span.status.description or "" for span in spans.spans]
    for span in spans.spans:
        texts += [str(value) for event in span.events for value in event.attributes.values()]
    assert all(text.encode() and len(text) < 20_000 for text in filter(None, texts))
    assert "s3cret" not in "".join(texts)
    assert "amqp://shop:***@rabbit" in "".join(texts)
    named = {span.attributes.get("tiercel.component"): span for span in spans.spans}
    assert "UnreadableError" in "".join(texts)
    assert {event.name for event in named["bolt"].events} == {"exception", "failed"}


def test_a_failure_by_hand_is_an_event():
    feeder, topology = in_a_row(ByHand())
    with recorded() as spans:
        ran(feeder, topology, "bad")
    [event] = spans.one("execute bolt").events
    assert (event.name, event.attributes["tiercel.reason"]) == ("failed", "by hand")


def test_what_a_sink_publishes_carries_the_context_on():
    feeder = FeederSpout(fields="word string")
    builder = TopologyBuilder("traced")
    builder.set_spout("in", feeder)
    sink = QueueSink("next", headers={"tenant": "a"}, body="x")
    builder.set_bolt("sink", sink).shuffle_grouping("in")
    with recorded() as spans, LocalCluster(builder.build()) as cluster:
        feeder.feed(["a"], 1)
        cluster.run_until_idle()
        [message] = cluster.published("next")
    made = spans.one("create next")
    assert spans.path_of(made) == ["process in", "execute sink", "create next"]
    assert made.kind is trace.SpanKind.PRODUCER
    parent = parent_in(message.properties.headers)
    assert (parent.trace_id, parent.span_id) == (made.context.trace_id, made.context.span_id)
    assert message.properties.headers["tenant"] == "a"


# -- sampling --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler", [ALWAYS_OFF, ParentBased(TraceIdRatioBased(0.0))], ids=["off", "none of them"]
)
def test_without_a_recorded_trace_no_chunk_has_a_byte_more(sampler, monkeypatch):
    sent = []
    monkeypatch.setattr(
        "tiercel.acker.inbox.chunk.written_contexts", lambda *_: sent.append(1) or b""
    )
    feeder, topology = in_a_row(Judging())
    with recorded(sampler) as spans:
        acked, _ = ran(feeder, topology, "a b c")
    assert acked == [0]
    assert not sent
    assert not spans.spans


def test_the_share_of_recorded_traces_is_that_of_the_sampler():
    with recorded(ParentBased(TraceIdRatioBased(0.25))):
        known = process.of_this_process()
        found = known.new_traces(4_000)
    assert 800 < len(found) < 1_200
    assert len(set(found.values())) == len(found)


def test_contexts_of_a_repeated_step_are_the_same_and_of_another_step_are_not():
    assert span_id_of(5, 7) == span_id_of(5, 7) != span_id_of(5, 8)
    assert span_id_of(6, 7) != span_id_of(5, 7)


# -- logs ------------------------------------------------------------------------------------------


def test_log_lines_in_a_span_name_it():
    made = logging.getLogRecordFactory()
    try:
        with recorded() as spans:
            known = process.of_this_process()
            known.name_in_logs()
            span = spans.provider.get_tracer("x").start_span("here")
            with known.current(span):
                record = logging.getLogger("mine").makeRecord("mine", 20, "f", 1, "hello", (), None)
            outside = logging.getLogger("mine").makeRecord("mine", 20, "f", 1, "hello", (), None)
            span.end()
    finally:
        logging.setLogRecordFactory(made)
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert f"trace_id={trace_id} span_id=" in TextFormatter().format(record)
    assert f'"trace_id": "{trace_id}"' in JsonFormatter().format(record)
    assert "trace_id" not in TextFormatter().format(outside)


# -- the receiver ----------------------------------------------------------------------------------


class Away:
    """An exporter whose receiver is away until the test says otherwise."""

    def __init__(self):
        self.away = True

    def export(self, spans):
        if self.away:
            logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error(
                "Failed to export span batch due to timeout or connection error: refused"
            )
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass

    def force_flush(self, timeout_millis=30_000):
        return True


def test_a_receiver_that_is_away_is_one_line_and_another_when_it_is_back(caplog):
    away = Away()
    one = process.OneLine(away)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            one.export([])
        away.away = False
        one.export([])
        one.export([])
    assert [record.event for record in caplog.records] == ["traces_away", "traces_back"]
    assert "refused" in caplog.records[0].getMessage()


@pytest.mark.parametrize("status", [None, 403, 500], ids=["away", "refuses", "fails"])
def test_the_lines_of_opentelemetry_about_a_real_receiver_become_one(status, caplog, monkeypatch):
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    if status is None:
        server.server_close()
    else:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with recorded() as spans:
        spans.provider.get_tracer("x").start_span("one").end()
    one = process.OneLine(process._exporter("otlp", {}))
    for _ in range(2):
        one.export(spans.spans)
    assert [record.event for record in caplog.records] == ["traces_away"]
    if status is not None:
        server.shutdown()
        server.server_close()
    one.shutdown()


def test_a_full_queue_drops_spans_and_waits_for_nobody(caplog):
    class Slow(Away):
        def export(self, spans):
            going.wait(10)
            return SpanExportResult.SUCCESS

    going = threading.Event()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(process.OneLine(Slow()), max_queue_size=8, max_export_batch_size=4)
    )
    known = Tracing(provider, parting_s=0.1)
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            known.start("one", "INTERNAL", [], {}).end()
        known.close()  # returns after a tenth of a second
    going.set()
    assert [record.event for record in caplog.records] == ["traces_away"]


FULL = logging.makeLogRecord({"msg": "Queue full, dropping Span."})


def test_a_slow_receiver_is_one_line_until_the_queue_is_no_longer_full(caplog, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(process.time, "monotonic", lambda: now_s[0])
    slow = Away()
    slow.away = False
    one = process.OneLine(slow)
    with caplog.at_level(logging.INFO):
        for _ in range(9):
            one._swallow(FULL)
            now_s[0] += 20
            one.export([])
        assert [record.event for record in caplog.records] == ["traces_away"]
        now_s[0] += 30
        one.export([])
    assert [record.event for record in caplog.records] == ["traces_away", "traces_back"]


def test_a_queue_that_is_full_while_its_receiver_is_away_tells_why_it_is_away(caplog):
    class Retrying(Away):
        def export(self, spans):
            one._swallow(logging.makeLogRecord({"msg": "Transient error refused, retrying in 1s."}))
            one._swallow(FULL)
            return SpanExportResult.FAILURE

    one = process.OneLine(Retrying())
    one.export([])
    [record] = caplog.records
    assert "Transient error refused" in record.getMessage()


def test_a_receiver_that_is_away_holds_up_no_end_of_a_run(caplog):
    class Hanging(Away):
        def export(self, spans):
            if self.away:
                self.away = False
                return SpanExportResult.FAILURE
            going.wait(60)
            return SpanExportResult.SUCCESS

    going = threading.Event()
    provider = TracerProvider(shutdown_on_exit=False)
    one = process.OneLine(Hanging())
    provider.add_span_processor(BatchSpanProcessor(one, schedule_delay_millis=60_000))
    known = Tracing(provider, parting_s=30, is_away=lambda: one.away)
    known.start("one", "INTERNAL", [], {}).end()
    known.flush()
    assert one.away
    known.start("two", "INTERNAL", [], {}).end()
    began_s = time.monotonic()
    known.flush()
    assert time.monotonic() - began_s < 5, "it does not wait for the receiver"
    going.set()
    wait_until(lambda: not one.away, 10, "the spans to be sent")


# -- the settings ----------------------------------------------------------------------------------


def test_without_settings_nothing_begins_and_nothing_is_imported():
    code = (
        "import sys; from tiercel.spark_jobs.tracing import process;"
        "assert process.start({}, 'x') is None;"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry.sdk')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def starting(exporter, monkeypatch):
    # ``start`` puts what is missing into the environment, where it would outlast the test.
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter)
    return process.start({"OTEL_TRACES_EXPORTER": exporter}, "x")


def test_without_opentelemetry_one_line_says_how_to_install_it(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert starting("otlp", monkeypatch) is None
    [record] = caplog.records
    assert record.event == "traces_not_installed"
    assert "tiercel[otel]" in record.getMessage()


def test_a_bad_setting_of_the_batches_is_one_line():
    """In a process of its own: OpenTelemetry keeps the first provider."""
    code = (
        "import logging; logging.basicConfig();"
        "from tiercel.spark_jobs.tracing import process;"
        "settings = {'OTEL_TRACES_EXPORTER': 'console', 'OTEL_BSP_SCHEDULE_DELAY': 'abc'};"
        "assert process.start(settings, 'x') is not None;"
        "process.stop()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    [line] = done.stderr.splitlines()
    assert "OTEL_BSP_SCHEDULE_DELAY as integer. Defaulting to" in line


def test_an_unknown_exporter_is_one_line(caplog, monkeypatch):
    assert starting("nonsense", monkeypatch) is None
    [record] = caplog.records
    assert "'nonsense'" in record.getMessage()
