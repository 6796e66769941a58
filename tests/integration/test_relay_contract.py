"""What ``Relay`` promises, held against both backends."""

import threading
import uuid
from datetime import timedelta

import pytest
import redis

from acker import LedgerUnavailableError
from acker.redis_client import connect
from queues.memory_relay import MemoryRelay
from queues.relay import START, Entry
from spark_jobs.relays import relay_on

NOW = timedelta(0)
BEGINNING = {0: START, 1: START}


@pytest.fixture(params=["memory", "redis"])
def relay(request):
    if request.param == "memory":
        made = MemoryRelay(lanes=2)
    else:
        made = relay_on(request.getfixturevalue("redis_url"), f"relay-{uuid.uuid4().hex}", lanes=2)
    yield made
    made.close()


def entries(*pairs):
    return [Entry(lane=lane, payload=payload) for lane, payload in pairs]


def test_what_was_appended_is_read_in_order_lane_by_lane(relay):
    relay.append(entries((0, b"a"), (1, b"b"), (0, b"c")))
    end = relay.advance(BEGINNING, 0, NOW)
    assert relay.read(0, START, end[0]) == [b"a", b"c"]
    assert relay.read(1, START, end[1]) == [b"b"]


def test_nothing_new_leaves_the_positions_where_they_are(relay):
    assert relay.advance(BEGINNING, 0, NOW) == BEGINNING
    relay.append(entries((0, b"a")))
    end = relay.advance(BEGINNING, 0, NOW)
    assert end[1] == START
    assert relay.advance(end, 0, NOW) == end


def test_a_range_reads_the_same_again_and_nothing_beyond_its_end(relay):
    relay.append(entries((0, b"a")))
    first = relay.advance(BEGINNING, 0, NOW)
    relay.append(entries((0, b"b")))
    second = relay.advance(first, 0, NOW)
    assert relay.read(0, START, first[0]) == relay.read(0, START, first[0]) == [b"a"]
    assert relay.read(0, first[0], second[0]) == [b"b"]


def test_a_limit_takes_the_oldest_entries_of_each_lane(relay):
    relay.append(entries((0, b"a"), (0, b"b"), (0, b"c"), (1, b"d")))
    end = relay.advance(BEGINNING, 2, NOW)
    assert relay.read(0, START, end[0]) == [b"a", b"b"]
    assert relay.read(1, START, end[1]) == [b"d"]


def test_waiting_ends_when_an_entry_comes(relay):
    late = threading.Timer(0.1, relay.append, [entries((1, b"late"))])
    late.start()
    end = relay.advance(BEGINNING, 0, timedelta(seconds=4))
    late.join()
    assert relay.read(1, START, end[1]) == [b"late"]


def test_finished_entries_are_gone_and_later_ones_are_not(relay):
    relay.append(entries((0, b"a"), (0, b"b")))
    first = relay.advance(BEGINNING, 1, NOW)
    assert relay.finish(first) == relay.finish(first) == first
    end = relay.advance(first, 0, NOW)
    assert relay.read(0, START, end[0]) == [b"b"]
    assert relay.length() == 1


def test_a_read_goes_to_what_came_since_it_was_planned_and_just_there_when_it_is_repeated(relay):
    relay.append(entries((0, b"a"), (1, b"b")))
    planned = relay.advance(BEGINNING, 0, NOW)
    relay.append(entries((0, b"c")))
    sealed = relay.seal(0, planned[0])
    assert relay.read(0, START, sealed) == [b"a", b"c"]
    relay.append(entries((0, b"d"), (1, b"e")))
    assert relay.seal(0, planned[0]) == sealed
    assert relay.read(1, START, relay.seal(1, planned[1])) == [b"b", b"e"]


def test_the_next_read_begins_where_the_last_one_ended_however_long_its_lane_was_silent(relay):
    relay.append(entries((0, b"a"), (1, b"b")))
    planned = relay.advance(BEGINNING, 0, NOW)
    relay.append(entries((0, b"c")))
    sealed = {lane: relay.seal(lane, end) for lane, end in planned.items()}
    assert sealed[0] != planned[0]
    for _ in range(3):  # micro-batches of lane 1 alone: lane 0 stays at what was planned
        assert relay.finish(planned) == relay.finish(planned) == sealed
        relay.append(entries((1, b"d")))
        planned = {0: planned[0], 1: relay.advance(sealed, 0, NOW)[1]}
        sealed[1] = relay.seal(1, planned[1])
    relay.append(entries((0, b"e")))
    assert relay.finish(planned) == sealed
    assert relay.read(0, sealed[0], relay.advance(sealed, 0, NOW)[0]) == [b"e"]
    assert relay.length() == 1


def test_a_task_that_nobody_waits_for_any_more_reads_nothing(relay):
    relay.append(entries((0, b"a")))
    planned = relay.advance(BEGINNING, 0, NOW)
    relay.seal(0, planned[0])
    relay.finish(planned)
    relay.append(entries((0, b"b")))
    later = relay.advance(planned, 0, NOW)
    relay.seal(0, later[0])
    relay.finish(later)
    relay.append(entries((0, b"c")))
    assert relay.seal(0, planned[0]) == planned[0]
    assert relay.read(0, START, planned[0]) == []


def test_draining_takes_everything_out_of_all_lanes(relay):
    relay.append(entries(*((number % 2, b"%d" % number) for number in range(250))))
    assert sorted(relay.drain()) == sorted(b"%d" % number for number in range(250))
    assert relay.drain() == []
    assert relay.length() == 0


def test_positions_go_on_after_the_relay_was_emptied(relay):
    relay.append(entries((0, b"a")))
    end = relay.advance(BEGINNING, 0, NOW)
    relay.finish(end)
    relay.append(entries((0, b"b")))
    assert relay.read(0, end[0], relay.advance(end, 0, NOW)[0]) == [b"b"]


def test_the_driver_that_came_last_attends_until_it_leaves(relay):
    assert relay.attendant() is None
    relay.attend("first", timedelta(seconds=60))
    relay.attend("second", timedelta(seconds=60))
    assert relay.attendant() == "second"
    relay.leave()
    assert relay.attendant() is None


def test_a_driver_that_says_nothing_any_more_has_gone(relay, wait_until):
    relay.attend("first", timedelta(milliseconds=50))
    wait_until(lambda: relay.attendant() is None, 5, "the attendance to end")


def test_a_payload_of_sixteen_mebibytes_passes(relay):
    payload = b"x" * (16 * 1024 * 1024)
    relay.append(entries((0, payload)))
    assert relay.read(0, START, relay.advance(BEGINNING, 0, NOW)[0]) == [payload]


def test_a_server_out_of_memory_takes_nothing_and_gives_out_what_it_has(redis):
    server = redis()
    relay, client = relay_on(server.url, "full", lanes=2), connect(server.url)
    relay.append(entries((0, b"a")))
    client.config_set("maxmemory", 1)
    for refused in (lambda: relay.append(entries((0, b"b"))), lambda: relay.attend("run", timedelta(seconds=60))):
        with pytest.raises(LedgerUnavailableError, match="takes no writes now"):
            refused()
    assert relay.attendant() is None
    relay.leave()
    assert relay.drain() == [b"a"]
    client.config_set("maxmemory", 0)
    relay.append(entries((0, b"b")))
    assert relay.drain() == [b"b"]
    relay.close()
    client.close()


def test_the_same_entries_appended_by_two_calls_stand_twice(relay):
    relay.append(entries((0, b"a")))
    relay.append(entries((0, b"a")))
    assert relay.length() == 2


def test_an_append_whose_reply_was_lost_is_recognised_when_it_is_repeated(redis_url):
    topology = f"relay-{uuid.uuid4().hex}"
    relay = relay_on(redis_url, topology, lanes=2)
    append = relay._append

    def reply_lost(**call):
        append(**call)
        raise redis.ConnectionError("reply lost")

    relay._append = reply_lost
    with pytest.raises(LedgerUnavailableError):
        relay.append(entries((0, b"a"), (1, b"b")))
    relay._append = append
    relay.append(entries((0, b"a"), (1, b"b")))
    assert relay.length() == 2
    relay.append(entries((0, b"a"), (1, b"b")))
    assert relay.length() == 4
    relay.close()


def test_a_server_that_is_not_there_is_one_clear_line():
    relay = relay_on("redis://:secret@127.0.0.1:1/0", "nowhere", lanes=1)
    with pytest.raises(LedgerUnavailableError, match="Redis does not answer") as caught:
        relay.append(entries((0, b"a")))
    assert "secret" not in str(caught.value)
