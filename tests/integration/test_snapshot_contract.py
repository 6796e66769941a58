"""What ``SnapshotStore`` promises, held against both backends."""

import re
import uuid

import pytest

from acker.redis_client import connect
from spark_jobs.snapshots.memory import MemorySnapshots
from spark_jobs.snapshots.redis_store import RedisSnapshots
from spark_jobs.snapshots.store import StaleSaveError


@pytest.fixture(params=["memory", "redis"])
def store(request):
    if request.param == "memory":
        made = MemorySnapshots()
    else:
        made = RedisSnapshots(connect(request.getfixturevalue("redis_url")), f"snapshots-{uuid.uuid4().hex}", "run")
    yield made
    made.close()


def test_an_attempt_finds_what_was_saved_before_its_micro_batch(store):
    store.save(3, {7: b"three", 8: b"other"})
    store.save(5, {7: b"five"})
    assert store.find([7, 8, 9], 6) == {7: 5, 8: 3}
    assert store.find([7, 8, 9], 5) == {7: 3, 8: 3}
    assert store.find([7], 3) == {}
    assert [store.load(7, 3), store.load(7, 5), store.load(8, 3)] == [b"three", b"five", b"other"]


def test_an_attempt_that_is_repeated_replaces_what_it_saved_and_leaves_the_one_before(store):
    store.save(1, {7: b"one"})
    store.save(2, {7: b"two"})
    store.save(2, {7: b"two again"})
    assert store.find([7], 2) == {7: 1}
    assert store.load(7, 1) == b"one"
    assert store.load(7, 2) == b"two again"


def test_the_newest_two_are_kept(store):
    for batch in range(5):
        store.save(batch, {7: b"%d" % batch})
    assert [store.load(7, batch) for batch in range(5)] == [None, None, None, b"3", b"4"]


def test_an_attempt_whose_micro_batch_is_over_is_refused_as_a_whole(store):
    store.save(4, {7: b"four"})
    with pytest.raises(StaleSaveError):
        store.save(3, {8: b"three", 7: b"three"})
    assert store.find([7, 8], 9) == {7: 4}
    assert store.load(7, 4) == b"four"


def test_nothing_is_found_where_nothing_was_saved(store):
    assert store.find([], 3) == {}
    assert store.find([1], 3) == {}
    assert store.load(1, 2) is None
    store.save(1, {})
    assert list(store.drain()) == []


def test_any_bytes_come_back_as_they_were(store):
    content = bytes(range(256)) * 1000
    store.save(0, {7: content, 8: b""})
    assert (store.load(7, 0), store.load(8, 0)) == (content, b"")
    assert store.find([7, 8], 1) == {7: 0, 8: 0}


def test_a_driver_takes_out_what_is_there(store):
    store.save(1, {7: b"a"})
    store.save(2, {7: b"b", 8: b"c"})
    assert sorted(content for _, content in store.drain()) == [b"a", b"b", b"c"]
    assert store.find([7, 8], 9) == {}
    assert list(store.drain()) == []


def test_what_is_taken_out_has_a_name_that_says_where_it_was(store):
    store.save(1, {7: b"a"})
    ((name, content),) = store.drain()
    assert content == b"a"
    assert re.search(r"\b7\b.*\b1\b", name)


def test_a_driver_takes_out_what_other_runs_left_and_runs_do_not_meet(redis_url):
    topology = f"snapshots-{uuid.uuid4().hex}"
    first, second = (RedisSnapshots(connect(redis_url), topology, run) for run in ("first", "second"))
    first.save(8, {7: b"left"})
    assert second.find([7], 9) == {}
    second.save(0, {7: b"new"})
    assert sorted(content for _, content in second.drain()) == [b"left", b"new"]
    client = connect(redis_url)
    assert list(client.scan_iter(f"tiercel:{{{topology}}}:*")) == []
    for each in (first, second, client):
        each.close()
