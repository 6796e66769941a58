"""The reader of a stream, called as Spark calls it, on a real broker and without Spark."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.broker import (
    plain_channel,
    put,
    ready,
    restart_in_order,
    take_all,
    unique,
    wait_ready,
)
from tests.support.data_frames import bodies_between, new_queue
from tests.support.fake_broker import held_by
from tests.support.waiting import wait_until
from tiercel.frames import session
from tiercel.frames.columns import available, rows_of, struct
from tiercel.frames.options import SourceOptions
from tiercel.frames.post import tell
from tiercel.frames.readers import RabbitMQStreamReader
from tiercel.frames.taker import Taker
from tiercel.queues.errors import BrokerRefusedError, QueueMissingError


@pytest.fixture
def queue(amqp_url):
    return new_queue(amqp_url, unique())


@pytest.fixture
def make(amqp_url, queue):
    readers = []

    def make(**options):
        found = SourceOptions.read({"url": amqp_url, "queue": queue} | options)
        readers.append(RabbitMQStreamReader(found, struct(available(found))))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def latest(reader, start):
    """Ask until the latest offset is beyond ``start``."""
    return wait_until(
        lambda: (end := reader.latestOffset(start, None)) != start and end, 20, "a new offset"
    )


def test_messages_are_acked_when_the_next_offset_is_asked_for(amqp_url, queue, make):
    put(amqp_url, queue, b"a", b"b")
    wait_ready(amqp_url, queue, 2)
    reader = make()
    start = reader.initialOffset()
    end = latest(reader, start)
    found = bodies_between(reader, start, end)
    while len(found) < 2:
        start, end = end, latest(reader, end)
        found += bodies_between(reader, start, end)
    assert found == [b"a", b"b"]
    assert reader.latestOffset(end, None) == end
    reader.stop()
    assert ready(amqp_url, queue) == 0


def test_messages_of_a_batch_that_is_not_committed_are_given_back_at_the_end(amqp_url, queue, make):
    put(amqp_url, queue, b"a")
    reader = make()
    start = reader.initialOffset()
    assert bodies_between(reader, start, latest(reader, start)) == [b"a"]
    reader.stop()
    wait_ready(amqp_url, queue, 1)


def test_headers_count_in_the_bytes_of_a_batch_and_of_all_that_is_held(amqp_url, queue, make):
    """9,000 messages without a body but with 118 KiB of headers killed the driver at each start."""
    put(amqp_url, queue, *[b""] * 400, headers={"large": "x" * 100_000})
    wait_ready(amqp_url, queue, 400)
    reader = make(maxBytesPerTrigger="1000000")
    end = reader.initialOffset()
    batches = []
    while sum(batches) < 400:
        start, end = end, latest(reader, end)
        batches.append(len(bodies_between(reader, start, end)))
        [consumer] = reader._session._taker._consumers
        assert held_by(consumer).size <= 2 * 16 * 1024 * 1024
    # One batch may be as large as the mean of the previous one allows.
    assert max(batches) <= 40
    assert sorted(batches)[len(batches) // 2] <= 20


def test_the_listeners_word_is_enough(amqp_url, queue, make):
    put(amqp_url, queue, b"a")
    reader = make()
    start = reader.initialOffset()
    end = latest(reader, start)
    bodies_between(reader, start, end)
    assert tell(end["reader"], {"committed": end["messages"]}) == {}
    reader.stop()
    assert ready(amqp_url, queue) == 0


def test_a_word_about_a_batch_that_spark_has_not_seen_acks_nothing(amqp_url, queue, make):
    put(amqp_url, queue, b"a")
    reader = make()
    end = latest(reader, reader.initialOffset())
    tell(end["reader"], {"committed": 1_000_000})
    reader.stop()
    wait_ready(amqp_url, queue, 1)


def test_a_query_that_needs_no_rows_does_not_stand_still(amqp_url, queue, make):
    """Spark plans no batch of ``orders.where("false")``; it commits them all the same."""
    put(amqp_url, queue, *[b"%d" % number for number in range(6)])
    wait_ready(amqp_url, queue, 6)
    reader = make(maxMessagesPerTrigger="1")
    end = reader.initialOffset()
    while end["messages"] < 6:
        end = latest(reader, end)
    assert reader.latestOffset(end, None) == end
    reader.stop()
    assert ready(amqp_url, queue) == 0


@pytest.fixture
def taken(amqp_url, monkeypatch):
    """A queue of three messages whose single active consumer is another one, and the channel of
    that consumer; a reader has waited for two seconds.
    """
    monkeypatch.setattr(session, "_FIRST_S", 2.0)
    name = unique()
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(name, lambda *_: None)
        put(amqp_url, name, b"a", b"b", b"c")
        wait_ready(amqp_url, name, 2)
        yield name, channel


@pytest.mark.timeout(60)
def test_what_waits_for_another_consumer_holds_up_no_query(taken, make):
    reader = make(queue=taken[0])
    start = reader.initialOffset()
    assert reader.latestOffset(start, None) == start


@pytest.mark.parametrize(("count", "lines"), [(10, 1), (4, 0)])
def test_the_only_batch_of_a_query_keeps_the_limit_and_says_what_it_leaves(
    amqp_url, queue, make, caplog, count, lines
):
    """Spark has no limit for ``trigger(once=True)``."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="new in PySpark 4.2")
    put(amqp_url, queue, *[b"%d" % number for number in range(count)])
    wait_ready(amqp_url, queue, count)
    reader = make(maxMessagesPerTrigger="4")
    # The offset of a reader before this one.
    start = {"reader": "0123456789abcdef", "messages": 100}
    end = reader.latestOffset(start, limits.ReadAllAvailable())
    assert end["messages"] == 104
    records = [each for each in caplog.records if getattr(each, "event", "") == "messages_left"]
    said = [record.message for record in records]
    assert len(said) == lines
    for line in said:
        assert f"4 of the 10 messages in {queue}" in line
        assert "trigger(availableNow=True)" in line


@pytest.mark.timeout(60)
def test_what_is_available_now_waits_for_another_consumer_and_says_so(taken, make, caplog):
    name, channel = taken
    reader = make(queue=name)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    ends = []
    asking = threading.Thread(target=lambda: ends.append(reader.latestOffset(start, None)))
    asking.start()
    said = f"messages wait in {name} and none comes: another consumer takes them first"
    wait_until(lambda: said in caplog.text, 30, "a word of what it waits for")
    channel.cancel()
    channel.close()
    asking.join()
    assert set(bodies_between(reader, start, ends[0])) <= {b"a", b"b", b"c"}
    assert ends[0] != start
    assert caplog.text.count("none comes") == 1


@pytest.mark.timeout(60)
def test_a_query_that_waits_for_another_consumer_connects_less_and_less_often(
    taken, make, monkeypatch
):
    name, channel = taken
    looks = []
    look = Taker.are_empty
    monkeypatch.setattr(
        Taker, "are_empty", lambda *given: looks.append(time.monotonic()) or look(*given)
    )
    reader = make(queue=name)
    reader.prepareForTriggerAvailableNow()
    asking = threading.Thread(target=reader.latestOffset, args=[reader.initialOffset(), None])
    asking.start()
    wait_until(lambda: len(looks) == 4, 30)
    channel.cancel()
    channel.close()
    asking.join()
    assert looks[3] - looks[2] >= 8 * session._LOOK_S


def test_as_spark_4_1_calls_it(amqp_url, queue, make):
    """Spark passes no start, and tells the checkpoint's offset by an empty range."""
    put(amqp_url, queue, b"a")
    reader = make()
    old = {"reader": "0123456789abcdef", "messages": 7}
    assert reader.partitions(old, old) == []
    end = wait_until(lambda: (found := reader.latestOffset()) != old and found, 20)
    assert end["messages"] == 8
    assert bodies_between(reader, old, end) == [b"a"]
    assert reader.latestOffset() == end
    reader.stop()
    assert ready(amqp_url, queue) == 0


def test_a_batch_of_an_earlier_reader_is_empty(make):
    reader = make()
    first, last = ({"reader": "0123456789abcdef", "messages": count} for count in (3, 9))
    assert reader.partitions(first, last) == []
    assert reader.latestOffset(last, None) == last


def test_a_replay_after_the_session_began_is_empty_too(make):
    reader = make()
    reader.latestOffset(reader.initialOffset(), None)
    first, last = ({"reader": "0123456789abcdef", "messages": count} for count in (3, 9))
    assert reader.partitions(first, last) == []


def test_what_is_available_now_ends_after_a_restart_too(amqp_url, queue, make, monkeypatch):
    """The number of messages still to read does not depend on the messages already read."""
    # A batch ends when no message comes for a moment, which may happen in its middle on a busy
    # machine.
    monkeypatch.setattr("tiercel.frames.session._PAUSE_S", 1.0)
    put(amqp_url, queue, *[b"%d" % number for number in range(50)])
    wait_ready(amqp_url, queue, 50)
    reader = make(maxMessagesPerTrigger="20")
    start = {"reader": "0123456789abcdef", "messages": 1_000}
    reader.prepareForTriggerAvailableNow()
    put(amqp_url, queue, b"late")
    found = []
    while (end := reader.latestOffset(start, None)) != start:
        found.append(bodies_between(reader, start, end))
        start = end
    assert [len(each) for each in found] == [20, 20, 10]
    assert start["messages"] == 1_050
    reader.stop()
    wait_ready(amqp_url, queue, 1)


def test_what_is_available_now_ends_though_another_consumer_takes_it(amqp_url, queue, make):
    put(amqp_url, queue, *[b"%d" % number for number in range(10)])
    wait_ready(amqp_url, queue, 10)
    # So few are on their way to this reader that the other consumer finds some.
    reader = make(maxMessagesPerTrigger="2")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    take_all(amqp_url, queue)
    while (end := reader.latestOffset(start, None)) != start:
        start = end
    assert start["messages"] < 10


def test_what_is_available_now_of_a_calm_queue_is_read_beside_a_busy_one(
    amqp_url, queue, make, monkeypatch
):
    """New messages of one queue do not count as messages that waited in another one."""
    monkeypatch.setattr("tiercel.frames.session._PAUSE_S", 1.0)
    busy = unique("busy")
    new_queue(amqp_url, busy)
    put(amqp_url, queue, *[b"old" for _ in range(30)])
    put(amqp_url, busy, *[b"old" for _ in range(2)])
    wait_ready(amqp_url, queue, 30)
    wait_ready(amqp_url, busy, 2)
    reader = make(queue=f"{busy},{queue}", maxMessagesPerTrigger="8")
    reader.prepareForTriggerAvailableNow()
    put(amqp_url, busy, *[b"new" for _ in range(40)])
    found = []
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, None)) != start:
        found += bodies_between(reader, start, end)
        start = end
    assert found == [b"old"] * 32
    reader.stop()
    wait_ready(amqp_url, busy, 40)


def test_what_is_available_now_is_read_to_its_end_though_messages_fail(
    amqp_url, queue, make, monkeypatch
):
    """A failed message that comes again does not count as another one that waited."""
    monkeypatch.setattr("tiercel.frames.session._PAUSE_S", 1.0)
    put(amqp_url, queue, *[b"%d" % number for number in range(12)])
    wait_ready(amqp_url, queue, 12)
    reader = make(maxMessagesPerTrigger="4")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    found = bodies_between(reader, start, end)
    failed = [[0, 1, tag, "no stock"] for tag in (1, 2)]
    assert tell(end["reader"], {"fail": failed, "again": True}) == {"failed": 2}
    tell(end["reader"], {"committed": end["messages"]})
    [consumer] = reader._session._taker._consumers
    wait_until(lambda: len(consumer._hand_out._came_back) == 2)
    start = end
    while (end := reader.latestOffset(start, None)) != start:
        found += bodies_between(reader, start, end)
        start = end
    assert sorted(found) == sorted([b"0", b"1", *[b"%d" % number for number in range(12)]])


@pytest.mark.rest
def test_what_is_available_now_is_read_to_its_end_though_the_broker_is_killed(rabbitmq):
    broker = rabbitmq()
    numbers = [b"%d" % number for number in range(40)]
    queue = new_queue(broker.url, unique(), *numbers)
    restart_in_order(broker)
    wait_ready(broker.url, queue, 40)
    options = {"url": broker.url, "queue": queue, "maxMessagesPerTrigger": "10"}
    reader = RabbitMQStreamReader(
        SourceOptions.read(options), struct(available(SourceOptions.read(options)))
    )
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    found = bodies_between(reader, start, end)
    broker.kill()
    start_again = threading.Thread(target=broker.start)
    start_again.start()
    while True:
        start, end = end, reader.latestOffset(end, None)
        if start == end:
            break
        found += bodies_between(reader, start, end)
    start_again.join()
    reader.stop()
    assert sorted(set(found)) == sorted(numbers)
    assert ready(broker.url, queue) == 0


def test_the_copies_of_a_reader_in_the_tasks_do_not_connect(make):
    reader = make(url="amqp://127.0.0.1:1")
    assert reader.initialOffset() == {"reader": "", "messages": 0}
    reader.stop()


def test_a_missing_queue_is_said_at_once(make):
    reader = make(queue="no-such-queue")
    with pytest.raises(QueueMissingError, match="no queue 'no-such-queue'"):
        reader.latestOffset(reader.initialOffset(), None)


def test_an_auto_delete_queue_is_refused_before_anything_of_it_is_read(amqp_url, make):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, auto_delete=True)
        put(amqp_url, name, b"a", b"b")
        reader = make(queue=name)
        with pytest.raises(BrokerRefusedError, match="is auto-delete"):
            reader.latestOffset(reader.initialOffset(), None)
        wait_ready(amqp_url, name, 2)
        channel.queue_delete(name)


def test_a_refused_login_is_said_at_once(amqp_url, make):
    url = "amqp://stranger:hunter2@" + amqp_url.rpartition("@")[2].removeprefix("amqp://")
    reader = make(url=url)
    with pytest.raises(BrokerRefusedError, match="refused the login of user 'stranger'") as raised:
        reader.latestOffset(reader.initialOffset(), None)
    assert "hunter2" not in str(raised.value)


def test_messages_that_failed_are_dead_lettered_with_their_batch_and_not_before(
    amqp_url, queue, make
):
    put(amqp_url, queue, b"a")
    reader = make()
    start = reader.initialOffset()
    end = latest(reader, start)
    [piece] = reader.partitions(start, end)
    [batch] = rows_of(piece)
    name, place, epoch, tag = batch.column("delivery")[0].as_py().split(".")
    word = {"fail": [[int(place), int(epoch), int(tag), "no stock"]], "again": False}
    assert tell(name, word) == {"failed": 1}
    reader.latestOffset(end, None)
    wait_until(lambda: ready(amqp_url, f"{queue}.dead") == 1)
    [(body, headers)] = take_all(amqp_url, f"{queue}.dead")
    assert (body, headers["x-tiercel-reason"]) == (b"a", "no stock")
