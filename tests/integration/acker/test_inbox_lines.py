"""The contract of lines in ``Inboxes``, run over both backends."""

from __future__ import annotations

import threading
import uuid
from collections import Counter

import pytest

from tests.support.inboxes import (
    FIRST,
    FOUR,
    OTHER,
    RUN,
    SECOND,
    SOON,
    TEN,
    claimed,
    commit,
    opened,
    parcel,
    payloads,
    put,
    take,
)
from tests.support.waiting import wait_until
from tiercel.acker.ids import is_line, line_of, task_of, tasks_of
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.contract import Bounds, Rest, StaleAttemptError, name_of
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.redis.scripts import RedisServers

BOUNDS = Bounds(tuples=10, bytes=1000)
LINE = line_of(FOUR)
WIDE = line_of(TEN)
DONE, REPEATED, DIFFERENT, FULL, STALE = Appended


@pytest.fixture(params=["memory", "redis", "redis on two servers", "redis cluster"])
def inboxes(request):
    name = f"lines-{uuid.uuid4().hex}"
    match request.param:
        case "memory":
            made = MemoryInboxes(BOUNDS)
        case "redis":
            url = request.getfixturevalue("redis_url")
            made = RedisInboxes(RedisServers([url]), name, BOUNDS)
        case "redis on two servers":
            url = request.getfixturevalue("redis_url")
            other = f"{url.rpartition('/')[0]}/1"
            made = RedisInboxes(RedisServers([url, other]), name, BOUNDS)
        case _:
            url = request.getfixturevalue("clustered_redis").url
            made = RedisInboxes(RedisServers([url]), name, BOUNDS)
    made.adopt(RUN, [*FOUR, LINE, *TEN, WIDE])
    yield made
    made.close()


def at_line(*chunks, line=LINE, **others):
    return parcel(*chunks, target=line, **others)


@pytest.fixture
def tasks(inboxes):
    return [opened(inboxes, task, line=LINE) for task in FOUR]


def test_who_asks_first_claims_the_head_of_the_line_and_nobody_else_has_it(inboxes, tasks):
    assert put(inboxes, 1, at_line(b"a", b"b", b"c")) == [DONE]
    assert payloads(take(tasks[2], claims=2)) == [b"a", b"b"]
    assert payloads(take(tasks[0], claims=2)) == [b"c"]
    assert take(tasks[1], claims=2) == []


def test_who_claims_nothing_leaves_the_line_alone(inboxes, tasks):
    put(inboxes, 1, at_line(b"a"))
    assert take(tasks[0]) == []
    assert inboxes.figures([LINE])[LINE].tuples == 1


def test_an_entry_of_many_tuples_is_shared_by_rows_and_gone_with_the_last(inboxes, tasks):
    put(inboxes, 1, at_line(b"chunk", tuples=[7]))
    assert claimed(take(tasks[0], claims=3)) == [(b"chunk", 0, 3)]
    assert inboxes.figures([LINE])[LINE].tuples == 4
    assert claimed(take(tasks[1], claims=1)) == [(b"chunk", 3, 1)]
    assert claimed(take(tasks[2], claims=9)) == [(b"chunk", 4, 3)]
    figures = inboxes.figures([LINE, *FOUR])
    assert (figures[LINE].tuples, figures[LINE].bytes) == (0, 0)
    assert [figures[task].tuples for task in FOUR] == [3, 1, 3, 0]


def test_more_is_claimed_of_a_line_that_has_as_many_for_each_task_and_no_more_than_the_share(
    inboxes, tasks
):
    put(inboxes, 1, at_line(b"chunk", tuples=[9]), parcel(b"mine", target=FOUR[3]))
    assert claimed(take(tasks[0], claims=1, more=7)) == [(b"chunk", 0, 2)]
    assert claimed(take(tasks[1], claims=3, more=7)) == [(b"chunk", 2, 3)]
    assert claimed(take(tasks[2], claims=0, more=7)) == [(b"chunk", 5, 1)]
    assert claimed(take(tasks[3], claims=1, more=7)) == [(b"mine", None, 1)]
    assert take(tasks[2], claims=0, more=7) == [], "three for four tasks"


def test_what_names_the_task_comes_first_and_counts(inboxes, tasks):
    put(inboxes, 1, at_line(b"any", b"more"), parcel(b"mine", target=FOUR[0]))
    assert claimed(take(tasks[0], claims=2)) == [(b"mine", None, 1), (b"any", 0, 1)]


def test_nothing_is_claimed_behind_an_entry_that_is_left_in_the_inbox(inboxes, tasks):
    put(inboxes, 1, at_line(b"any"), parcel(b"1", b"2", target=FOUR[0]))
    assert payloads(take(tasks[0], tuples=1, claims=5)) == [b"1"]
    assert payloads(take(tasks[0], claims=5)) == [b"2", b"any"]


def test_a_claim_whose_reply_was_lost_is_repeated_and_claims_nothing_more(inboxes):
    put(inboxes, 1, at_line(b"a", b"b"))
    attempt = inboxes.draw(RUN, FOUR[0])
    inbox = inboxes.open(RUN, FOUR[0], attempt, LINE)
    first = take(inbox, claims=1)
    # The client missed the reply of its first call: the position has not moved.
    again = inboxes.open(RUN, FOUR[0], attempt, LINE)
    assert take(again, claims=1) == first
    assert inboxes.figures([LINE])[LINE].tuples == 1


def test_an_append_is_known_as_repeated_at_the_line_whoever_has_claimed_it(inboxes, tasks):
    assert put(inboxes, 1, at_line(b"a")) == [DONE]
    assert payloads(take(tasks[1], claims=1)) == [b"a"]
    assert put(inboxes, 1, at_line(b"a")) == [REPEATED]
    assert put(inboxes, 1, at_line(b"other")) == [DIFFERENT]
    assert take(tasks[2], claims=1) == []


def test_a_line_that_is_full_takes_more_when_some_was_claimed(inboxes, tasks):
    assert put(inboxes, 1, at_line(b"a", tuples=[10])) == [DONE]
    assert put(inboxes, 2, at_line(b"b")) == [FULL]
    look = inboxes.has_room(RUN, FIRST, 2, at_line(b"b"))
    assert not look.perform()
    take(tasks[0], claims=1)
    assert look.perform()
    assert put(inboxes, 2, at_line(b"b")) == [DONE]
    assert put(inboxes, 3, at_line(b"c")) == [FULL]


def test_a_sender_that_was_fenced_off_appends_nothing_to_a_line(inboxes, tasks):
    inboxes.fence(RUN, SECOND, [LINE])
    assert put(inboxes, 1, at_line(b"a"), sender=FIRST) == [STALE]
    assert put(inboxes, 1, at_line(b"a"), sender=SECOND) == [DONE]
    with pytest.raises(StaleAttemptError):
        inboxes.fence(RUN, FIRST, [LINE])


def test_an_attempt_that_was_replaced_claims_nothing(inboxes, tasks):
    put(inboxes, 1, at_line(b"a"))
    newer = opened(inboxes, FOUR[0], line=LINE)
    with pytest.raises(StaleAttemptError):
        take(tasks[0], claims=1)
    assert payloads(take(newer, claims=1)) == [b"a"]


def test_a_new_attempt_finds_what_the_one_before_had_claimed_and_not_finished(inboxes, tasks):
    put(inboxes, 1, at_line(b"chunk", tuples=[5]))
    done = take(tasks[0], claims=1)
    commit(tasks[0], 1, done)
    claimed_then = take(tasks[0], claims=2)
    newer = opened(inboxes, FOUR[0], line=LINE)
    assert newer.opened.taken == claimed_then[-1].position
    assert claimed(take(newer)) == [(b"chunk", 1, 2)]
    assert inboxes.figures([FOUR[0]])[FOUR[0]].tuples == 2


def test_what_was_not_begun_goes_back_to_the_head_of_the_line_once(inboxes, tasks):
    put(inboxes, 1, at_line(b"four", b"one", b"last", tuples=[4, 1, 1]))
    four, one = take(tasks[0], claims=5)
    rests = [
        # The line's first two tuples have been executed.
        Rest(position=four.position, first=2, done=b"\x0c"),
        Rest(position=one.position, first=0),
    ]
    assert tasks[0].give_back(rests).perform()
    assert tasks[0].give_back(rests).perform(), "a repeat has no effect"
    assert inboxes.figures([LINE])[LINE].tuples == 4
    assert claimed(take(tasks[1], claims=9)) == [(b"four", 2, 2), (b"one", 0, 1), (b"last", 0, 1)]
    newer = opened(inboxes, FOUR[0], line=LINE)
    assert newer.opened.done == {four.position: b"\x0c"}
    assert claimed(take(newer)) == [(b"four", 0, 4)]


def test_a_rest_that_went_back_may_be_claimed_in_parts_and_go_back_again(inboxes, tasks):
    put(inboxes, 1, at_line(b"chunk", tuples=[6]))
    [entry] = take(tasks[0], claims=6)
    tasks[0].give_back([Rest(position=entry.position, first=1, done=b"\x3e")]).perform()
    [part] = take(tasks[1], claims=4)
    assert (part.first, part.tuples) == (1, 4)
    tasks[1].give_back([Rest(position=part.position, first=2, done=b"\x0c")]).perform()
    assert Counter(claimed(take(tasks[2], claims=9))) == Counter(
        [(b"chunk", 5, 1), (b"chunk", 3, 2)]
    )


def test_an_attempt_that_was_replaced_gives_nothing_back(inboxes, tasks):
    put(inboxes, 1, at_line(b"a"))
    [entry] = take(tasks[0], claims=1)
    opened(inboxes, FOUR[0], line=LINE)
    assert not tasks[0].give_back([Rest(position=entry.position, first=0)]).perform()
    assert inboxes.figures([LINE])[LINE].tuples == 0


def test_one_entry_wakes_a_task_and_what_that_leaves_wakes_another(inboxes, tasks):
    found = []
    lock = threading.Lock()

    def wait(inbox):
        entries = take(inbox, wait=SOON, claims=1)
        with lock:
            found.extend(payloads(entries))

    waiting = [threading.Thread(target=wait, args=(inbox,)) for inbox in tasks[:3]]
    for thread in waiting:
        thread.start()
    put(inboxes, 1, at_line(b"a", b"b"))
    wait_until(lambda: len(found) == 2, 10, "two of the three")
    put(inboxes, 1, at_line(b"c"), sender=OTHER)
    for thread in waiting:
        thread.join(10)
    assert sorted(found) == [b"a", b"b", b"c"]


def test_the_next_run_drains_a_line_and_what_went_back_to_it(inboxes, tasks):
    put(inboxes, 1, at_line(b"a", b"b", b"c"))
    a, _ = take(tasks[0], claims=2)
    tasks[0].give_back([Rest(position=a.position, first=0)]).perform()
    inboxes.adopt("next", [*FOUR])
    with pytest.raises(StaleAttemptError):
        take(tasks[1], claims=1)
    assert put(inboxes, 2, at_line(b"d")) == [STALE]
    left = []
    while found := inboxes.drain("next"):
        for target, entries in found:
            left += payloads(entries)
            assert target in FOUR or (is_line(target) and task_of(target) in FOUR)
            inboxes.discard("next", target, [entry.position for entry in entries])
    assert sorted(left) == [b"a", b"b", b"c"]
    inboxes.adopt("next", [*FOUR])
    assert not inboxes.figures([LINE])[LINE].adopted, "it is forgotten"


def test_many_tasks_share_a_line_whatever_servers_they_are_on(inboxes):
    for number in range(1, 101):
        sent = at_line(b"%d" % number, line=WIDE, bounded=False)
        assert put(inboxes, number, sent) == [DONE]
        assert put(inboxes, number, sent) == [REPEATED]
    every = [opened(inboxes, task, line=WIDE) for task in TEN]
    found = [
        payload for inbox in every for _ in range(50) for payload in payloads(take(inbox, claims=3))
    ]
    assert sorted(map(int, found)) == list(range(1, 101))
    assert inboxes.figures([WIDE])[WIDE].tuples == 0


def test_the_id_of_a_line_says_whose_it_is():
    assert list(tasks_of(LINE)) == list(FOUR)
    assert is_line(LINE)
    assert not is_line(FOUR[-1])
    assert name_of(LINE) == "the line of task 20"
    assert line_of(range(20, 24)) != line_of(range(20, 25)) != line_of(range(21, 25))


def test_an_entry_of_a_line_that_is_none_of_ours_is_handed_on_to_be_passed_over(redis_url, client):
    name = f"lines-{uuid.uuid4().hex}"
    inboxes = RedisInboxes(RedisServers([redis_url]), name, BOUNDS)
    inboxes.adopt(RUN, [*FOUR, LINE])
    put(inboxes, 1, at_line(b"ours"))
    [stream] = client.keys(f"tiercel:{{{name}:inbox:*}}:*:entries")
    client.xadd(stream, {"other": "field", "more": "of it"})
    inbox = opened(inboxes, FOUR[0], line=LINE)
    assert [entry.tuples for entry in take(inbox, claims=5)] == [1, 0]
    inboxes.close()
