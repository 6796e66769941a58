"""Data frames into queues, from plain PySpark: each row is confirmed before its batch counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tests.support.broker import plain_channel, put, ready, take_all, unique
from tests.support.data_frames import committed, new_queue, plain_spark
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.dataframe import register_rabbitmq

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def spark():
    with plain_spark() as running:
        yield running


@pytest.fixture
def queue(amqp_url):
    return new_queue(amqp_url, unique())


@pytest.fixture
def exchange(amqp_url, queue):
    """An exchange that routes the key ``new`` to the queue."""
    name = unique("exchange")
    with plain_channel(amqp_url) as channel:
        channel.exchange_declare(name, "direct")
        channel.queue_bind(queue, name, "new")
    return name


@pytest.fixture
def write(amqp_url):
    def write(rows, **options):
        rows.write.format("rabbitmq").mode("append").options(url=amqp_url, **options).save()

    return write


def messages(amqp_url, queue):
    """Take all messages from the queue, with their properties."""
    found = []
    with plain_channel(amqp_url) as channel:
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((message[2], message[1]))
    return found


def test_rows_are_in_the_queue_when_the_write_returns(spark, amqp_url, queue, write):
    write(spark.range(1000).selectExpr("cast(id as string) as body"), queue=queue)
    found = messages(amqp_url, queue)
    assert sorted(int(body) for body, _ in found) == list(range(1000))
    assert len({properties.message_id for _, properties in found}) == 1000
    assert {properties.delivery_mode for _, properties in found} == {2}


def write_in_threads(session, write, rows, queue, times):
    """Write the rows this number of times, in two threads that register the session themselves."""
    pool = ThreadPoolExecutor(2, initializer=register_rabbitmq, initargs=(session,))
    with pool:
        list(pool.map(lambda _: write(rows, queue=queue), range(times)))


def test_threads_that_register_the_session_write(spark, amqp_url, queue, write):
    rows = spark.sql("select 'a' body")
    write_in_threads(spark, write, rows, queue, 3)
    assert [body for body, _ in take_all(amqp_url, queue)] == [b"a"] * 3


def test_threads_within_a_batch_of_a_stream_write(spark, amqp_url, queue, write):
    source = new_queue(amqp_url, unique("source"), b"a", b"b")

    def write_twice(rows, number):
        write_in_threads(spark, write, rows.select("body"), queue, 2)

    rows = spark.readStream.format("rabbitmq").options(url=amqp_url, queue=source).load()
    query = rows.writeStream.foreachBatch(write_twice).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(body for body, _ in take_all(amqp_url, queue)) == [b"a", b"a", b"b", b"b"]


def test_two_sessions_write_in_one_thread(spark, amqp_url, queue, write):
    second = spark.newSession()
    register_rabbitmq(second)
    active = spark._jvm.SparkSession.getActiveSession().get()
    assert active.equals(spark._jsparkSession)
    write(second.sql("select 'b' body"), queue=queue)
    write(spark.sql("select 'a' body"), queue=queue)
    assert [body for body, _ in take_all(amqp_url, queue)] == [b"b", b"a"]


def test_columns_are_properties_exchange_and_routing_key(spark, amqp_url, queue, exchange, write):
    rows = spark.sql(
        f"""select 'hello' body, '{exchange}' exchange, 'new' routing_key, 'm' message_id,
        4 priority, timestamp '2026-01-02 03:04:05' timestamp, map('a', 'b') headers,
        'order' type, cast(null as string) reply_to"""
    )
    write(rows)
    [(body, properties)] = messages(amqp_url, queue)
    assert (body, properties.message_id, properties.priority) == (b"hello", "m", 4)
    assert properties.timestamp == int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
    assert (properties.type, properties.reply_to) == ("order", None)
    assert properties.headers["a"] == "b"


def test_a_row_that_no_queue_is_bound_for_fails_the_write(spark, exchange, write):
    rows = spark.sql("select 'lost' body")
    with pytest.raises(PySparkException, match="leads to no queue for the routing key 'old'"):
        write(rows, exchange=exchange, routingKey="old")


def test_a_row_that_cannot_be_routed_goes_aside_if_the_user_says_so(
    spark, amqp_url, queue, exchange, write
):
    aside = new_queue(amqp_url, unique("aside"))
    rows = spark.sql("select * from values ('a', 'new'), ('b', 'old') as t(body, routing_key)")
    write(rows, exchange=exchange, unroutableQueue=aside)
    assert [body for body, _ in take_all(amqp_url, queue)] == [b"a"]
    [(body, headers)] = take_all(amqp_url, aside)
    assert body == b"b"
    assert "leads to no queue" in headers["x-tiercel-reason"]


def test_without_mandatory_a_row_that_cannot_be_routed_is_dropped(spark, exchange, write):
    write(spark.sql("select 'lost' body"), exchange=exchange, routingKey="old", mandatory="false")


@pytest.mark.parametrize(
    ("sql", "options", "said"),
    [
        ("select 'a' body", {"queue": "no-such-queue"}, "there is no queue 'no-such-queue'"),
        ("select 'a' body", {"exchange": "no-such", "routingKey": "a"}, "no exchange 'no-such'"),
        ("select 'a' value", {"queue": "q"}, "writes a column 'body'"),
        ("select 'a' body, 1 n", {"queue": "q"}, "a message has no 'n'"),
        ("select 'a' body, 256 priority", {"queue": "q"}, "priority is a number from 0 to 255"),
        ("select 'a' body", {"queue": "q", "queu": "q"}, "there is no option 'queu'"),
    ],
)
def test_one_line_says_what_is_wrong(spark, write, sql, options, said):
    with pytest.raises(PySparkException, match=said):
        write(spark.sql(sql), **options)


def test_a_queue_cannot_be_overwritten(spark, amqp_url, queue):
    rows = spark.sql("select 'a' body").write.format("rabbitmq").mode("overwrite")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows.options(url=amqp_url, queue=queue).save()


def copy(spark, amqp_url, source, checkpoint, **target):
    rows = spark.readStream.format("rabbitmq").options(url=amqp_url, queue=source).load()
    writer = rows.drop("message_id", "exchange", "routing_key").writeStream.format("rabbitmq")
    return writer.options(url=amqp_url, checkpointLocation=str(checkpoint), **target).start()


def test_a_stream_goes_from_queue_to_queue(spark, amqp_url, queue, tmp_path):
    source = new_queue(amqp_url, unique("source"), *[b"%d" % n for n in range(500)], type="order")
    query = copy(spark, amqp_url, source, tmp_path, queue=queue)
    wait_until(lambda: ready(amqp_url, queue) == 500, 60)
    query.processAllAvailable()
    query.stop()
    found = messages(amqp_url, queue)
    assert sorted(int(body) for body, _ in found) == list(range(500))
    assert {properties.type for _, properties in found} == {"order"}
    assert ready(amqp_url, source) == 0


def test_a_repeated_batch_is_recognised_by_its_message_ids(spark, amqp_url, queue, tmp_path):
    """A source such as files repeats its rows after its commit was lost."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.txt").write_text("a\nb\nc\n")
    checkpoint = tmp_path / "checkpoint"

    def run():
        rows = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "body")
        writer = rows.writeStream.format("rabbitmq").options(
            url=amqp_url, queue=queue, checkpointLocation=str(checkpoint)
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(60)
        return {properties.message_id: body for body, properties in messages(amqp_url, queue)}

    first = run()
    assert sorted(first.values()) == [b"a", b"b", b"c"]
    for path in (checkpoint / "commits").glob("*0*"):
        path.unlink()
    assert run() == first


def test_a_stream_of_which_a_row_cannot_be_routed_fails_and_loses_nothing(
    spark, amqp_url, exchange, tmp_path
):
    source = new_queue(amqp_url, unique("source"), b"one")
    query = copy(spark, amqp_url, source, tmp_path, exchange=exchange, routingKey="old")
    with pytest.raises(StreamingQueryException, match="leads to no queue"):
        query.awaitTermination(60)
    assert committed(tmp_path) == []
    wait_until(lambda: ready(amqp_url, source) == 1, 10)


def test_a_sink_waits_for_a_broker_that_restarts(spark, rabbitmq, tmp_path):
    broker = rabbitmq()
    broker.restart(keep_data=True)
    source = new_queue(broker.url, unique("source"))
    target = new_queue(broker.url, unique("target"))
    query = copy(spark, broker.url, source, tmp_path, queue=target)
    put(broker.url, source, *[b"%d" % n for n in range(200)])
    wait_until(lambda: ready(broker.url, target) > 0, 60)
    broker.restart(keep_data=True)
    # The queue may have no leader yet.
    with Publisher(broker.url, timedelta(seconds=60)) as publisher:
        publisher.publish(source, [b"%d" % n for n in range(200, 400)])
    found = set()

    def all_there():
        found.update(int(body) for body, _ in take_all(broker.url, target))
        return found == set(range(400))

    wait_until(all_there, 90)
    query.processAllAvailable()
    query.stop()
    wait_until(lambda: ready(broker.url, source) == 0, 10)
