"""Queues as streams of plain PySpark, on a real broker and without Redis: a message is acked after
the batch that read it is committed, and otherwise redelivered.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime

import pika
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from tests.support.broker import delete, put, ready, take_all, unique
from tests.support.data_frames import (
    Rows,
    committed,
    kill_readers,
    new_queue,
    offsets,
    plain_spark,
    reader_pids,
    settled_within,
)
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.dataframe import FramesError, ReaderGoneError, fail_messages
from tiercel.examples import word_count
from tiercel.queues.message.writing import OutgoingMessage
from tiercel.testing import complete_topology

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::ResourceWarning")]

LONG = {"processingTime": "1 hour"}
NEW_YEAR = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


@pytest.fixture(scope="module")
def spark():
    with plain_spark() as running:
        yield running


@pytest.fixture
def queue(amqp_url):
    return new_queue(amqp_url, unique())


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "checkpoint"


@pytest.fixture
def stream(spark, amqp_url, queue):
    def stream(schema=None, **options):
        reader = spark.readStream.format("rabbitmq")
        reader = reader if schema is None else reader.schema(schema)
        return reader.options(**{"url": amqp_url, "queue": queue} | options).load()

    yield stream
    for query in spark.streams.active:
        query.stop()
    wait_until(lambda: not reader_pids())


@pytest.fixture
def start(checkpoint):
    def start(rows, function, **trigger):
        writer = rows.writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(checkpoint))
        return writer.trigger(**trigger).start() if trigger else writer.start()

    return start


def bodies(count, first=0):
    return [f"m{number}".encode() for number in range(first, first + count)]


def texts(count, first=0):
    return sorted(body.decode() for body in bodies(count, first))


@pytest.mark.parametrize("trigger", [{}, LONG], ids=["idle", "hourly"])
def test_a_message_is_acked_within_a_second_of_its_commit_though_no_other_comes(
    amqp_url, queue, stream, start, checkpoint, trigger
):
    """Messages that are not acked by then are redelivered when the reader is killed."""
    put(amqp_url, queue, *bodies(3))
    rows = Rows()
    start(stream(), rows, **trigger)
    wait_until(lambda: len(rows.all) == 3 and len(committed(checkpoint)) == len(rows.batches), 60)
    last = checkpoint / "commits" / str(max(committed(checkpoint)))
    # It takes a tenth of a second, or longer on a busy machine.
    settled_within(5.0, last.stat().st_mtime)
    kill_readers()
    # The broker requeues unacked messages as soon as their connections are gone.
    settled_within(3.0, time.time())
    assert ready(amqp_url, queue) == 0
    assert sorted(rows.all) == texts(3)


def test_before_its_commit_a_message_is_not_acked(amqp_url, queue, stream, checkpoint, tmp_path):
    put(amqp_url, queue, *bodies(3))
    began = tmp_path / "began"

    def hang(parts):
        for part in parts:
            began.touch()
            time.sleep(600)
            yield part

    rows = stream("body binary").mapInArrow(hang, "body binary")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.start()
    wait_until(began.exists, 60)
    assert ready(amqp_url, queue) == 0
    query.stop()
    wait_until(lambda: ready(amqp_url, queue) == 3, 10, "the messages to be back")
    assert committed(checkpoint) == []


def test_a_query_that_needs_no_rows_acks_them_and_goes_on(amqp_url, queue, stream, start):
    """Spark commits such batches without planning them."""
    put(amqp_url, queue, *bodies(8))
    query = start(stream(maxMessagesPerTrigger="1").where("false"), Rows())
    wait_until(lambda: ready(amqp_url, queue) == 0, 60)
    query.processAllAvailable()
    query.stop()
    wait_until(lambda: not reader_pids(), 10)
    assert ready(amqp_url, queue) == 0


def test_nothing_is_held_after_a_stop(amqp_url, queue, stream, start, checkpoint):
    put(amqp_url, queue, *bodies(100))
    rows = Rows()
    query = start(stream(maxMessagesPerTrigger="10"), rows)
    wait_until(lambda: len(rows.all) >= 30, 60)
    query.stop()
    wait_until(lambda: not reader_pids(), 10)
    [end] = offsets(checkpoint, max(committed(checkpoint)))
    wait_until(lambda: ready(amqp_url, queue) == 100 - end["messages"], 10)


def test_a_query_that_is_started_again_repeats_nothing_that_was_committed(
    amqp_url, queue, stream, start, checkpoint
):
    put(amqp_url, queue, *bodies(5))
    first = Rows()
    query = start(stream(), first, **LONG)
    wait_until(lambda: len(first.all) > 0 and len(committed(checkpoint)) == 1, 60)
    query.stop()
    put(amqp_url, queue, *bodies(5, first=5))
    second = Rows()
    start(stream(), second)
    wait_until(lambda: len(set(first.all) | set(second.all)) == 10, 60)
    assert sorted(first.all + second.all) == texts(10)


def test_a_queue_that_is_loaded_twice_is_read_by_two_readers(
    amqp_url, queue, stream, start, checkpoint
):
    put(amqp_url, queue, *bodies(200))
    first = Rows()
    query = start(stream().union(stream()), first, **LONG)
    wait_until(lambda: len(first.all) > 0 and len(committed(checkpoint)) == 1, 60)
    assert len(reader_pids()) == 2
    settled_within(5.0, (checkpoint / "commits" / "0").stat().st_mtime)
    query.stop()
    wait_until(lambda: not reader_pids(), 10)
    put(amqp_url, queue, *bodies(100, first=200))
    second = Rows()
    start(stream().union(stream()), second)
    wait_until(lambda: len(set(first.all) | set(second.all)) == 300, 60)
    assert sorted(first.all + second.all) == texts(300)


def test_a_batch_that_fails_comes_again_in_a_batch_of_its_own(
    amqp_url, queue, stream, start, checkpoint
):
    """Its number is planned once more, with an empty batch: otherwise a sink that already has a
    batch of this number would drop other messages.
    """
    put(amqp_url, queue, *bodies(4))

    def fail(rows, number):
        rows.collect()
        raise RuntimeError("the sink is full")

    query = start(stream(), fail)
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(60)
    wait_until(lambda: ready(amqp_url, queue) == 4, 10)
    [failed] = offsets(checkpoint, 0)
    rows = Rows()
    start(stream(), rows)
    wait_until(lambda: len(rows.all) == 4, 60)
    assert rows.batches[0] == []
    assert sorted(rows.all) == texts(4)
    [then] = offsets(checkpoint, max(rows.batches))
    assert then["reader"] != failed["reader"]
    assert then["messages"] == failed["messages"] + 4


def test_a_batch_that_is_read_twice_has_the_same_messages(amqp_url, queue, stream, start):
    put(amqp_url, queue, *bodies(20))
    seen = []

    def twice(rows, number):
        seen.append([sorted(bytes(row.body) for row in rows.collect()) for _ in range(2)])

    start(stream(), twice)
    wait_until(lambda: sum(len(first) for first, _ in seen) == 20, 60)
    assert all(first == second for first, second in seen)


def test_available_now_reads_what_is_there_in_batches_and_ends(
    amqp_url, queue, stream, start, checkpoint
):
    put(amqp_url, queue, *bodies(100))
    wait_until(lambda: ready(amqp_url, queue) == 100)
    rows = Rows()
    query = start(stream(maxMessagesPerTrigger="30"), rows, availableNow=True)
    assert query.awaitTermination(60)
    assert max(map(len, rows.batches.values())) <= 30
    # Before 4.2 Spark tells no Python source about availableNow, and makes one batch.
    count = 30 if pyspark.__version__ < "4.2" else 100
    assert sorted(rows.all) == texts(count)
    wait_until(lambda: not reader_pids(), 10)
    wait_until(lambda: ready(amqp_url, queue) == 100 - count, 10)


def test_available_now_ends_on_an_empty_queue(stream, start):
    rows = Rows()
    assert start(stream(), rows, availableNow=True).awaitTermination(60)
    assert rows.all == []


def test_once_reads_one_batch_within_the_limit(amqp_url, queue, stream, start):
    put(amqp_url, queue, *bodies(10))
    wait_until(lambda: ready(amqp_url, queue) == 10)
    rows = Rows()
    query = start(stream(maxMessagesPerTrigger="4"), rows, once=True)
    assert query.awaitTermination(60)
    assert rows.all == texts(4)
    wait_until(lambda: ready(amqp_url, queue) == 6, 10)


def test_a_limit_bounds_each_batch(amqp_url, queue, stream, start):
    put(amqp_url, queue, *bodies(50))
    rows = Rows()
    start(stream(maxMessagesPerTrigger="20"), rows)
    wait_until(lambda: len(rows.all) == 50, 60)
    assert max(map(len, rows.batches.values())) <= 20


def test_large_messages_are_bounded_by_their_bytes(amqp_url, queue, stream, start):
    size = 300_000
    put(amqp_url, queue, *[b"%d" % number + b"x" * size for number in range(8)])
    found = {}

    def sizes(rows, number):
        found[number] = [row.size for row in rows.select(f.length("body").alias("size")).collect()]

    start(stream(maxBytesPerTrigger="700000"), sizes)
    wait_until(lambda: sum(map(len, found.values())) == 8, 60)
    assert max(map(len, found.values())) <= 3


def test_several_queues_are_one_stream(amqp_url, queue, stream, start):
    other = new_queue(amqp_url, unique(), b"other")
    put(amqp_url, queue, b"one")
    rows = Rows("queue")
    start(stream(queue=f"{queue},{other}"), rows)
    wait_until(lambda: len(rows.all) == 2, 60)
    assert sorted(rows.all) == sorted([queue, other])


def test_a_batch_has_as_many_partitions_as_asked_for(amqp_url, queue, stream, start):
    put(amqp_url, queue, *bodies(100))
    wait_until(lambda: ready(amqp_url, queue) == 100)
    found = []

    def count(rows, number):
        found.append((rows.rdd.getNumPartitions(), rows.count()))

    start(stream(partitions="4"), count, availableNow=True).awaitTermination(60)
    assert (4, 100) in found


def test_columns_and_properties(amqp_url, queue, stream, start):
    sent = {
        "message_id": "m-1",
        "correlation_id": "c",
        "reply_to": "r",
        "content_type": "text/plain",
        "type": "order",
        "app_id": "shop",
        "priority": 3,
        "timestamp": 1_700_000_000,
        "headers": {"tenant": "a", "tries": 3, "late": True},
    }
    put(amqp_url, queue, b"hello", **sent)
    found = []
    query = start(stream(), lambda rows, _: found.extend(rows.collect()))
    [row] = wait_until(lambda: found, 60)
    query.stop()
    same = ("message_id", "correlation_id", "reply_to", "content_type", "type", "app_id")
    assert [row[name] for name in same] == [sent[name] for name in same]
    assert (bytes(row.body), row.priority, row.queue) == (b"hello", 3, queue)
    assert (row.exchange, row.routing_key) == ("", queue)
    assert row.timestamp == datetime.fromtimestamp(1_700_000_000, UTC).replace(tzinfo=None)
    assert row.headers == {"tenant": "a", "tries": "3", "late": "true"}
    assert (row.redelivered, row.delivery_count) == (False, 0)


def test_a_schema_chooses_the_columns(amqp_url, queue, stream, start):
    put(amqp_url, queue, b"hello")
    rows = stream("routing_key string, body binary")
    assert rows.columns == ["routing_key", "body"]
    found = []
    start(rows, lambda rows, _: found.extend(rows.collect()))
    [row] = wait_until(lambda: found, 60)
    assert (row.routing_key, bytes(row.body)) == (queue, b"hello")


def test_bad_bodies_go_to_the_dead_letters_and_their_neighbours_come(
    amqp_url, queue, stream, start
):
    put(amqp_url, queue, b'{"id": 1}', b"{", b'{"id": "2"}', b'{"id": 3}')
    rows = Rows("id")
    query = start(stream(fields="id long"), rows)
    wait_until(lambda: len(rows.all) == 2, 60)
    wait_until(lambda: ready(amqp_url, f"{queue}.dead") == 2, 10)
    query.stop()
    assert sorted(rows.all) == [1, 3]
    reasons = [headers["x-tiercel-reason"] for _, headers in take_all(amqp_url, f"{queue}.dead")]
    assert sorted(reason[:20] for reason in reasons) == [
        "field 'id' is a long",
        "the body is not JSON",
    ]


def test_bad_bodies_go_to_a_column_if_the_user_says_so(amqp_url, queue, stream, start):
    put(amqp_url, queue, b'{"id": 1}', b"{")
    found = []
    rows = stream(fields="id long", columnNameOfCorruptRecord="_bad")
    start(rows.select("id", "_bad"), lambda rows, _: found.extend(rows.collect()))
    wait_until(lambda: len(found) == 2, 60)
    assert sorted((row.id or 0, bytes(row._bad or b"")) for row in found) == [(0, b"{"), (1, b"")]


def test_a_batch_fails_single_messages_with_a_reason(amqp_url, queue, stream, start):
    put(amqp_url, queue, *bodies(10))
    failed = []

    def check(rows, number):
        bad = rows.where("cast(body as string) in ('m3', 'm5')")
        reason = f.concat(f.lit("no stock for "), f.col("body").cast("string"))
        failed.append(fail_messages(bad, reason, again=False))

    query = start(stream(), check)
    wait_until(lambda: sum(failed) == 2, 60)
    wait_until(lambda: ready(amqp_url, f"{queue}.dead") == 2, 10)
    query.stop()
    letters = {
        body: headers["x-tiercel-reason"] for body, headers in take_all(amqp_url, f"{queue}.dead")
    }
    assert letters == {b"m3": "no stock for m3", b"m5": "no stock for m5"}
    assert ready(amqp_url, queue) == 0


def test_a_failed_message_comes_again_until_its_limit(amqp_url, queue, stream, start):
    put(amqp_url, queue, b"bad", b"good")
    tries = []

    def check(rows, number):
        bad = rows.where("body = cast('bad' as binary)")
        tries.append(fail_messages(bad, "not today"))

    start(stream(deliveryLimit="2"), check)
    wait_until(lambda: ready(amqp_url, f"{queue}.dead") == 1, 60)
    assert sum(tries) == 3
    assert ready(amqp_url, queue) == 0


def test_messages_of_a_query_that_has_ended_cannot_fail(
    amqp_url, queue, stream, start, spark, tmp_path
):
    put(amqp_url, queue, b"one")
    saved = str(tmp_path / "rows")
    query = start(stream(), lambda rows, _: rows.write.mode("append").parquet(saved))
    wait_until(lambda: committed(tmp_path / "checkpoint"), 60)
    query.stop()
    with pytest.raises(ReaderGoneError, match="has ended"):
        fail_messages(spark.read.parquet(saved), "too late")


def test_a_field_named_delivery_names_no_message(spark):
    with pytest.raises(FramesError, match="'by ship' names no message that a stream has read"):
        fail_messages(spark.sql("select 'by ship' delivery"), "too late")


def sentences_said(count):
    """Make sentences for the topology that counts words, each with its second; they come up to nine
    seconds late.
    """
    said = [
        (number * 7919 % 60, f"the falcon {number % 5} and a tiercel") for number in range(count)
    ]
    return sorted(said, key=lambda each: each[0] + each[0] * 7 % 10)


def send_sentences(amqp_url, queue, said):
    messages = [
        OutgoingMessage(
            routing_key=queue,
            body=sentence.encode(),
            properties=pika.BasicProperties(timestamp=NEW_YEAR + at, delivery_mode=2),
        )
        for at, sentence in said
    ]
    with Publisher(amqp_url) as publisher:
        publisher.publish_all(messages)


def test_windows_of_sql_equal_a_batch_computation(amqp_url, queue, stream, spark, tmp_path):
    """A topology's words are counted by event time, with a watermark, over a stream read in many
    batches: each window equals the batch computation's, and together they equal the topology's
    output.
    """
    said = sentences_said(600)
    send_sentences(amqp_url, queue, [*said, (3600, "end")])
    sentences = stream(
        "timestamp timestamp, sentence string",
        fields="sentence string",
        maxMessagesPerTrigger="150",
    )
    words = sentences.selectExpr("timestamp", "explode(split(sentence, ' ')) as word")
    windows = (
        words.withWatermark("timestamp", "10 seconds")
        .groupBy(f.window("timestamp", "10 seconds"), "word")
        .count()
    )
    query = (
        windows.writeStream.format("parquet")
        .option("path", str(tmp_path / "windows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("append")
        .start()
    )
    # Not availableNow, which is one batch before PySpark 4.2.
    wait_until(lambda: rows_read(query) == 601 or query.exception(), 200)
    query.processAllAvailable()
    assert sum(each.numInputRows > 0 for each in query.recentProgress) > 3
    query.stop()
    streamed = Counter()
    for row in spark.read.parquet(str(tmp_path / "windows")).collect():
        streamed[row.window.start.second, row.word] += row["count"]
    batch = Counter((at - at % 10, word) for at, sentence in said for word in sentence.split(" "))
    assert streamed == batch
    fed = {"sentences": [[sentence] for _, sentence in said]}
    emitted = complete_topology(word_count.topology(), mock_sources=fed)
    totals = Counter()
    for (_, word), count in streamed.items():
        totals[word] += count
    assert totals == Counter(word for [word] in emitted["split"])


def rows_read(query):
    return sum(each.numInputRows for each in query.recentProgress)


def test_a_look_shows_what_is_there_and_leaves_it(spark, amqp_url, queue):
    put(amqp_url, queue, *bodies(50))
    wait_until(lambda: ready(amqp_url, queue) == 50)
    rows = spark.read.format("rabbitmq").option("url", amqp_url).option("queue", queue).load()
    assert rows.count() == 50
    assert sorted(row.body for row in rows.selectExpr("cast(body as string) body").collect()) == (
        texts(50)
    )
    assert ready(amqp_url, queue) == 50


def test_a_look_at_an_empty_queue_has_no_rows(spark, amqp_url, queue):
    rows = spark.read.format("rabbitmq").option("url", amqp_url).option("queue", queue).load()
    assert rows.collect() == []


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"queue": "no-such-queue"}, "no queue 'no-such-queue'"),
            ({"queu": "x"}, "there is no option 'queu' to read rabbitmq with"),
            ({"maxMessagesPerTrigger": "many"}, "maxMessagesPerTrigger is a whole number"),
            ({"fields": "id blob"}, "unknown type 'blob'"),
        ],
    )
    def test_one_line_says_what_is_wrong(self, stream, start, options, said):
        with pytest.raises(Exception, match=said):
            start(stream(**options), Rows()).awaitTermination(60)

    def test_a_refused_login_ends_the_query_and_shows_no_password(self, amqp_url, stream, start):
        url = (
            amqp_url.replace("://", "://nobody:hunter2@", 1)
            if "@" not in amqp_url
            else ("amqp://nobody:hunter2@" + amqp_url.partition("@")[2])
        )
        query = start(stream(url=url), Rows())
        with pytest.raises(
            StreamingQueryException, match="refused the login of user 'nobody'"
        ) as e:
            query.awaitTermination(60)
        assert "hunter2" not in str(e.value)

    def test_a_queue_that_is_deleted_under_the_query_ends_it(self, amqp_url, queue, stream, start):
        rows = Rows()
        put(amqp_url, queue, b"one")
        query = start(stream(), rows)
        wait_until(lambda: rows.all, 60)
        delete(amqp_url, queue)
        with pytest.raises(StreamingQueryException, match=f"no queue '{queue}'"):
            query.awaitTermination(60)

    def test_a_body_over_the_limit_is_dead_lettered_with_the_reason(
        self, amqp_url, queue, stream, start
    ):
        put(amqp_url, queue, b"x" * (16 * 1024 * 1024 + 1), b"small")
        rows = Rows()
        start(stream(), rows)
        wait_until(lambda: rows.all == ["small"], 60)
        wait_until(lambda: ready(amqp_url, f"{queue}.dead") == 1, 30)
