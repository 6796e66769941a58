"""The contract of ``Inboxes``, run over both backends."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import timedelta

import pytest

from tests.support.inboxes import (
    FIRST,
    GONE,
    ONE,
    OTHER,
    RUN,
    SECOND,
    SOON,
    TWO,
    commit,
    covering,
    opened,
    parcel,
    payloads,
    put,
    take,
)
from tiercel.acker.ids import EXTRA, line_of
from tiercel.acker.inbox.chunk import LARGEST, Appended, Parcel
from tiercel.acker.inbox.contract import (
    Bounds,
    Covered,
    Holdings,
    OpenWindows,
    Sender,
    StaleAttemptError,
)
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.redis.scripts import RedisServers

BOUNDS = Bounds(tuples=10, bytes=1000, senders=8)
DONE, REPEATED, DIFFERENT, FULL, STALE = Appended


def in_redis(*urls, topology=None):
    return RedisInboxes(RedisServers(urls), topology or f"inbox-{uuid.uuid4().hex}", BOUNDS)


def two_databases(url):
    return url, f"{url.rpartition('/')[0]}/1"


@pytest.fixture(params=["memory", "redis", "redis on two servers", "redis cluster"])
def inboxes(request):
    match request.param:
        case "memory":
            made = MemoryInboxes(BOUNDS)
        case "redis":
            made = in_redis(request.getfixturevalue("redis_url"))
        case "redis on two servers":
            made = in_redis(*two_databases(request.getfixturevalue("redis_url")))
        case _:
            made = in_redis(request.getfixturevalue("clustered_redis").url)
    made.adopt(RUN, [ONE, TWO])
    yield made
    made.close()


# -- appending and taking -------------------------------------------------------------------------


def test_chunks_are_taken_once_in_order_with_their_counts(inboxes):
    inbox = opened(inboxes)
    assert put(inboxes, 1, parcel(b"a", b"\x00\xff", tuples=[2, 3])) == [DONE]
    assert put(inboxes, 2, parcel(b"c")) == [DONE]
    taken = take(inbox)
    assert [(entry.payload, entry.tuples) for entry in taken] == [
        (b"a", 2),
        (b"\x00\xff", 3),
        (b"c", 1),
    ]
    assert len({entry.position for entry in taken}) == 3
    assert take(inbox) == []


def test_a_call_appends_to_several_inboxes_and_each_task_sees_its_own(inboxes):
    assert put(inboxes, 1, parcel(b"a"), parcel(b"b", target=TWO)) == [DONE, DONE]
    assert payloads(take(opened(inboxes, ONE))) == [b"a"]
    assert payloads(take(opened(inboxes, TWO))) == [b"b"]


def test_a_take_ends_before_its_bounds_and_brings_one_entry_whatever_they_are(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"aa", b"bb", b"cc", b"dd", tuples=[2, 2, 1, 3]))
    assert payloads(take(inbox, tuples=4)) == [b"aa", b"bb"]
    assert payloads(take(inbox, size=1)) == [b"cc"]
    assert payloads(take(inbox, tuples=1)) == [b"dd"]
    put(inboxes, 2, parcel(b"ee", b"f", b"g", bounded=False))
    assert payloads(take(inbox, size=3)) == [b"ee", b"f"]
    assert payloads(take(inbox, size=3)) == [b"g"]


def test_a_new_attempt_takes_everything_from_the_beginning(inboxes):
    first = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b"))
    assert payloads(take(first, tuples=1)) == [b"a"]
    second = opened(inboxes)
    assert payloads(take(second)) == [b"a", b"b"]


def test_a_payload_of_sixteen_mebibytes_passes(inboxes):
    payload = b"\xab" * (16 * 1024 * 1024)
    assert put(inboxes, 1, parcel(payload)) == [DONE]
    assert payloads(take(opened(inboxes))) == [payload]


# -- repeats ---------------------------------------------------------------------------------------


def test_a_repeated_append_is_recognised_also_after_its_entries_are_gone(inboxes):
    inbox = opened(inboxes)
    effects = inboxes.append(RUN, FIRST, 5, [parcel(b"a"), parcel(b"b", target=TWO)])
    assert [effect.perform() for effect in effects] == [DONE, DONE]
    assert [effect.perform() for effect in effects] == [REPEATED, REPEATED]
    assert commit(inbox, 1, take(inbox))
    assert put(inboxes, 5, parcel(b"a")) == [REPEATED]
    assert put(inboxes, 4, parcel(b"older")) == [REPEATED]
    assert take(inbox) == []


def test_a_parcel_is_lacking_until_it_or_a_later_one_of_its_sender_was_appended(inboxes):
    def lacking(number, part=0, sender=FIRST, target=ONE):
        return inboxes.lacks(sender, number, parcel(b"a", part=part, target=target)).perform()

    assert lacking(1)
    assert put(inboxes, 3, parcel(b"a", part=1)) == [DONE]
    inbox = opened(inboxes)
    assert commit(inbox, 1, take(inbox))
    found = {(n, part): lacking(n, part) for n in (2, 3, 4) for part in (0, 1, 2)}
    assert [place for place, lacks in found.items() if lacks] == [(3, 2), (4, 0), (4, 1), (4, 2)]
    assert lacking(1, sender=OTHER)
    assert lacking(1, target=TWO)
    assert lacking(1, target=GONE)


@pytest.mark.parametrize("other", [(b"b",), (b"a", b""), (b"",)])
def test_the_same_number_with_other_content_appends_nothing(inboxes, other):
    put(inboxes, 1, parcel(b"a"))
    assert put(inboxes, 1, parcel(*other)) == [DIFFERENT]
    assert put(inboxes, 1, parcel(b"a", tuples=[2])) == [DIFFERENT]
    assert put(inboxes, 1, parcel(b"a")) == [REPEATED]
    assert payloads(take(opened(inboxes))) == [b"a"]


def test_the_parts_of_a_number_are_recognised_one_by_one(inboxes):
    first, second, third = (parcel(text, part=part) for part, text in enumerate((b"a", b"b", b"c")))
    assert put(inboxes, 5, first) == [DONE]
    assert put(inboxes, 5, second) == [DONE]
    assert put(inboxes, 5, first, sender=SECOND) == [REPEATED], "from the beginning, after a death"
    assert put(inboxes, 5, second, sender=SECOND) == [REPEATED]
    assert put(inboxes, 5, parcel(b"other", part=1), sender=SECOND) == [DIFFERENT]
    assert put(inboxes, 5, third, sender=SECOND) == [DONE]
    assert put(inboxes, 6, first, sender=SECOND) == [DONE], "the next number begins with part 0"
    assert put(inboxes, 5, parcel(b"d", part=3), sender=SECOND) == [REPEATED]
    assert payloads(take(opened(inboxes))) == [b"a", b"b", b"c", b"a"]


def test_a_fence_keeps_the_parts_that_came_before_it(inboxes):
    assert put(inboxes, 5, parcel(b"a")) == [DONE]
    assert put(inboxes, 5, parcel(b"b", part=1)) == [DONE]
    inboxes.fence(RUN, SECOND, [ONE, TWO])
    assert put(inboxes, 5, parcel(b"c", part=2)) == [STALE]
    assert put(inboxes, 5, parcel(b"b", part=1), sender=SECOND) == [REPEATED]
    assert put(inboxes, 5, parcel(b"c", part=2), sender=SECOND) == [DONE]


def test_each_sender_and_each_inbox_has_numbers_of_its_own(inboxes):
    assert put(inboxes, 7, parcel(b"a")) == [DONE]
    assert put(inboxes, 3, parcel(b"b"), sender=OTHER) == [DONE]
    assert put(inboxes, 7, parcel(b"c", target=TWO)) == [DONE]


def test_the_largest_numbers_are_exact(inboxes):
    sender = Sender(task=2, attempt=LARGEST)
    assert put(inboxes, LARGEST - 1, parcel(b"a"), sender=sender) == [DONE]
    assert put(inboxes, LARGEST, parcel(b"b"), sender=sender) == [DONE]
    assert put(inboxes, LARGEST - 1, parcel(b"a"), sender=sender) == [REPEATED]
    with pytest.raises(ValueError, match="not between 1 and"):
        put(inboxes, LARGEST + 1, parcel(b"c"))


def test_a_call_that_breaks_the_rules_is_refused_before_anything_is_sent(inboxes):
    with pytest.raises(ValueError, match="two parcels for one inbox"):
        put(inboxes, 1, parcel(b"a"), parcel(b"b"))
    with pytest.raises(ValueError, match="not between 1 and"):
        put(inboxes, 0, parcel(b"a"))
    with pytest.raises(ValueError, match="0 chunks"):
        put(inboxes, 1, Parcel(target=ONE, chunks=[], tuples=[]))
    assert take(opened(inboxes)) == []


def test_seal_and_finish_may_be_repeated_and_come_late(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    covered = covering(1, take(inbox), ticks=3)
    seal = inbox.seal(covered)
    finish = inbox.finish(1)
    assert [seal.perform(), seal.perform()] == [True, True]
    assert [finish.perform(), finish.perform()] == [True, True]
    assert seal.perform(), "a seal whose reply was lost, sent again after its step was finished"
    found = opened(inboxes).opened
    assert (found.step, found.ticks, found.sealed) == (1, 3, None)


def test_opening_again_finds_the_same(inboxes):
    attempt = inboxes.draw(RUN, ONE)
    put(inboxes, 1, parcel(b"a"))
    first = inboxes.open(RUN, ONE, attempt)
    first.seal(covering(1, take(first))).perform()
    assert inboxes.open(RUN, ONE, attempt).opened == inboxes.open(RUN, ONE, attempt).opened
    assert first.finish(1).perform()


def test_fencing_and_adopting_again_change_nothing(inboxes):
    inbox = opened(inboxes)
    inboxes.fence(RUN, FIRST, [ONE, TWO])
    put(inboxes, 1, parcel(b"a"))
    inboxes.fence(RUN, FIRST, [ONE, TWO])
    inboxes.adopt(RUN, [ONE, TWO])
    assert put(inboxes, 1, parcel(b"a")) == [REPEATED]
    assert commit(inbox, 1, take(inbox))


def test_tasks_that_a_run_adopts_later_are_as_good_as_the_others(inboxes):
    put(inboxes, 1, parcel(b"a"))
    inboxes.adopt(RUN, [ONE, TWO, 12])
    assert put(inboxes, 2, parcel(b"b"), parcel(b"c", target=12)) == [DONE, DONE]
    assert payloads(take(opened(inboxes))) == [b"a", b"b"]
    assert payloads(take(opened(inboxes, 12))) == [b"c"]


# -- room ------------------------------------------------------------------------------------------


def test_a_full_inbox_refuses_until_there_is_room_again(inboxes):
    inbox = opened(inboxes)
    assert put(inboxes, 1, parcel(b"a", tuples=[6])) == [DONE]
    refused = inboxes.append(RUN, FIRST, 2, [parcel(b"b", tuples=[5])])[0]
    assert [refused.perform(), refused.perform()] == [FULL, FULL]
    assert put(inboxes, 1, parcel(b"c", tuples=[4]), sender=OTHER) == [DONE]
    first, second = take(inbox)
    assert refused.perform() is FULL, "taken is not finished"
    assert commit(inbox, 1, [first])
    assert refused.perform() is DONE
    assert payloads(take(inbox)) == [b"b"]
    assert commit(inbox, 2, [second])
    assert inboxes.figures([ONE])[ONE].tuples == 5


def test_bytes_are_bounded_too(inboxes):
    inbox = opened(inboxes)
    assert put(inboxes, 1, parcel(b"a" * 400, b"b" * 400)) == [DONE]
    assert put(inboxes, 2, parcel(b"c" * 201)) == [FULL]
    assert put(inboxes, 2, parcel(b"c" * 200)) == [DONE]
    assert commit(inbox, 1, take(inbox))
    assert put(inboxes, 3, parcel(b"d" * 5000)) == [DONE], "an empty inbox takes any parcel"
    assert put(inboxes, 4, parcel(b"e")) == [FULL]


def test_figures_of_extra_tasks_are_found_without_their_numbers(inboxes):
    extra = [EXTRA + ONE, 2 * EXTRA + TWO]
    line = line_of([40, 41])
    assert inboxes.figures([ONE, line], extra=True).keys() == {ONE, line}
    inboxes.adopt(RUN, [ONE, TWO, *extra])
    put(inboxes, 1, parcel(b"a", target=extra[1], tuples=[3]))
    assert inboxes.figures([ONE]).keys() == {ONE}
    found = inboxes.figures([ONE], extra=True)
    assert {task: one.tuples for task, one in found.items()} == {ONE: 0, extra[0]: 0, extra[1]: 3}


def test_a_look_tells_whether_a_parcel_has_room(inboxes):
    def has_room(tuples=1, size=1, *, sender=FIRST, target=ONE, run=RUN, bounded=True):
        one = parcel(b"x" * size, tuples=[tuples], target=target, bounded=bounded)
        return inboxes.has_room(run, sender, 2, one).perform()

    inbox = opened(inboxes)
    assert has_room(11, 5000), "an empty inbox takes any parcel"
    assert put(inboxes, 1, parcel(b"a" * 400, tuples=[6])) == [DONE]
    assert has_room(4, 600)
    assert not has_room(5, 600)
    assert not has_room(4, 601)
    assert has_room(5, 601, bounded=False)
    assert has_room(11, 5000, target=TWO)
    assert put(inboxes, 2, parcel(b"b", tuples=[4])) == [DONE], "a look changes nothing"
    assert not has_room(sender=OTHER)
    # A stale sender learns that from the append, and must not wait for it.
    inboxes.fence(RUN, SECOND, [ONE])
    assert has_room(sender=FIRST)
    assert not has_room(sender=SECOND)
    assert has_room(target=GONE)
    assert has_room(run="next")
    assert commit(inbox, 1, take(inbox))
    assert has_room(11, sender=SECOND)


def test_a_parcel_without_bounds_is_always_taken(inboxes):
    put(inboxes, 1, parcel(b"a", tuples=[10]))
    assert put(inboxes, 2, parcel(b"b")) == [FULL]
    assert put(inboxes, 2, parcel(b"b", bounded=False)) == [DONE]
    assert put(inboxes, 3, parcel(b"c")) == [FULL]
    assert inboxes.figures([ONE])[ONE].tuples == 11


def test_room_is_whole_again_when_nothing_is_left_whatever_the_steps_said(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a", tuples=[10]))
    assert inbox.seal(Covered(step=1, whole=[take(inbox)[0].position], tuples=1, bytes=0)).perform()
    assert inbox.finish(1).perform()
    found = inboxes.figures([ONE])[ONE]
    assert (found.tuples, found.bytes) == (0, 0)


# -- permissions -----------------------------------------------------------------------------------


def test_a_run_with_a_lower_number_takes_no_inbox_from_its_successor(inboxes):
    number = 1763800000000000
    first = str(number)
    ended = f"{number}-ended"
    second = str(number + 1)
    inboxes.adopt(first, [ONE, TWO])
    inboxes.adopt(ended, [ONE, TWO])
    inboxes.adopt(second, [ONE, TWO])
    assert put(inboxes, 1, parcel(b"a"), run=second) == [DONE]
    for late in (first, ended, RUN, str(number + 1)[:-1]):
        for tasks in ([ONE, TWO], [GONE], []):
            with pytest.raises(StaleAttemptError, match=f"run {late} is over"):
                inboxes.adopt(late, tasks)
    assert put(inboxes, 2, parcel(b"b"), run=second) == [DONE]
    assert payloads(take(opened(inboxes, ONE, second))) == [b"a", b"b"]
    inboxes.adopt(f"{second}-ended", [ONE, TWO])
    assert put(inboxes, 3, parcel(b"c"), run=second) == [STALE]


def test_another_run_is_refused_everywhere(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    taken = take(inbox)
    assert inbox.seal(covering(1, taken)).perform()
    inboxes.adopt("next", [ONE, TWO])
    assert put(inboxes, 2, parcel(b"b")) == [STALE]
    assert not inbox.seal(covering(2, taken)).perform()
    assert not inbox.finish(1).perform()
    for refused in (
        lambda: take(inbox),
        lambda: take(inbox, wait=SOON),
        lambda: inbox.read([taken[0].position]),
        lambda: inboxes.draw(RUN, ONE),
        lambda: inboxes.open(RUN, ONE, 99),
        lambda: inboxes.fence(RUN, FIRST, [ONE]),
        lambda: inboxes.drain(RUN),
        lambda: inboxes.discard(RUN, ONE, [taken[0].position]),
    ):
        with pytest.raises(StaleAttemptError):
            refused()
    assert inboxes.beat(RUN, {ONE: 1, TWO: 1}, {}, "").stale == [ONE, TWO]
    assert inboxes.drain("next") == [(ONE, taken)]


def test_an_inbox_that_no_run_has_is_closed_to_all(inboxes):
    assert put(inboxes, 1, parcel(b"a", target=GONE)) == [STALE]
    for refused in (
        lambda: inboxes.draw(RUN, GONE),
        lambda: inboxes.open(RUN, GONE, 1),
        lambda: inboxes.fence(RUN, FIRST, [ONE, GONE]),
        lambda: inboxes.discard(RUN, GONE, ["1-0"]),
    ):
        with pytest.raises(StaleAttemptError):
            refused()
    assert inboxes.beat(RUN, {GONE: 1}, {}, "").stale == [GONE]
    found = inboxes.figures([GONE, ONE])
    assert (found[GONE].adopted, found[ONE].adopted) == (False, True)
    assert (found[GONE].tuples, found[GONE].attempts, found[GONE].seen_s) == (0, 0, None)


def test_an_older_attempt_can_no_longer_take_seal_or_finish(inboxes):
    older = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    taken = take(older)
    newer = opened(inboxes)
    assert not older.seal(covering(1, taken)).perform(), "it seals too late"
    assert newer.opened.sealed is None
    assert payloads(take(newer)) == [b"a"]
    for refused in (lambda: take(older), lambda: older.read([taken[0].position])):
        with pytest.raises(StaleAttemptError):
            refused()
    with pytest.raises(StaleAttemptError):
        inboxes.open(RUN, ONE, 1)
    assert not older.finish(1).perform()
    assert commit(newer, 1, taken)


def test_an_attempt_that_only_drew_its_number_stops_nobody(inboxes):
    older = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    inboxes.draw(RUN, ONE)
    assert commit(older, 1, take(older))
    assert inboxes.beat(RUN, {ONE: 1}, {}, "").stale == []


def test_a_sender_that_was_fenced_off_appends_nothing_more(inboxes):
    put(inboxes, 1, parcel(b"a"), parcel(b"b", target=TWO))
    inboxes.fence(RUN, SECOND, [ONE])
    assert put(inboxes, 2, parcel(b"c")) == [STALE]
    assert put(inboxes, 1, parcel(b"a")) == [STALE]
    assert put(inboxes, 1, parcel(b"a"), sender=SECOND) == [REPEATED], "numbers go on over attempts"
    assert put(inboxes, 1, parcel(b"z"), sender=SECOND) == [DIFFERENT]
    assert put(inboxes, 2, parcel(b"c"), sender=SECOND) == [DONE]
    assert put(inboxes, 9, parcel(b"d"), sender=OTHER) == [DONE]
    with pytest.raises(StaleAttemptError):
        inboxes.fence(RUN, FIRST, [ONE])
    assert put(inboxes, 2, parcel(b"e", target=TWO)) == [DONE], "fenced off at the other inbox only"


def test_a_fence_before_the_first_append_holds_and_an_append_is_one_itself(inboxes):
    inboxes.fence(RUN, SECOND, [ONE])
    assert put(inboxes, 1, parcel(b"a")) == [STALE]
    assert put(inboxes, 1, parcel(b"a", target=TWO), sender=SECOND) == [DONE]
    assert put(inboxes, 2, parcel(b"b", target=TWO)) == [STALE]


def test_drawn_senders_that_are_gone_are_forgotten_and_append_nothing_more(inboxes):
    """Each process of a spout worker is one sender. Its appends may come late, and a second append
    of the same tuple would put it into its tree twice.
    """
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"bolt"))
    gone = inboxes.draw_sender()
    assert put(inboxes, 1, parcel(b"gone", bounded=False), sender=gone) == [DONE]
    unused = inboxes.draw_sender()
    for number in range(50):
        sender = inboxes.draw_sender()
        assert sender.task < gone.task
        some = parcel(b"%d" % number, bounded=False)
        assert put(inboxes, 1, some, sender=sender) == [DONE]
        # The newest senders are known, so a repeat is recognized.
        assert put(inboxes, 1, some, sender=sender) == [REPEATED]
        assert put(inboxes, 2, parcel(b"x", bounded=False), sender=sender) == [DONE]
    assert number_of_senders(inboxes) <= BOUNDS.senders + 2
    assert put(inboxes, 1, parcel(b"gone", bounded=False), sender=gone) == [STALE]
    assert put(inboxes, 2, parcel(b"next", bounded=False), sender=gone) == [STALE]
    assert put(inboxes, 1, parcel(b"late", bounded=False), sender=unused) == [STALE]
    # Bolt tasks are never forgotten, and neither is any sender of an inbox with few senders.
    assert put(inboxes, 1, parcel(b"bolt")) == [REPEATED]
    assert put(inboxes, 1, parcel(b"gone", target=TWO), sender=gone) == [DONE]
    assert payloads(take(inbox, tuples=10_000)).count(b"gone") == 1
    # Another run knows none of these senders.
    inboxes.adopt("next", [ONE, TWO])
    assert put(inboxes, 1, parcel(b"a", bounded=False), sender=unused, run="next") == [DONE]


def test_senders_that_are_drawn_after_2038_are_forgotten_too(inboxes):
    """Their numbers are above 2**53, where Lua's numbers are no longer exact."""
    if isinstance(inboxes, MemoryInboxes):
        inboxes._drawn = 2**31
    else:
        key = f"tiercel:{{{inboxes._name}}}:sender"
        words = ("SET", key, 2**31)
        inboxes._servers.at(0, key).command(*words, read=bool, verb="draw").perform()
    for number in range(50):
        some = parcel(b"%d" % number, bounded=False)
        sender = inboxes.draw_sender()
        assert put(inboxes, 1, some, sender=sender) == [DONE]
        assert put(inboxes, 1, some, sender=sender) == [REPEATED]
    assert number_of_senders(inboxes) <= BOUNDS.senders + 2


def number_of_senders(inboxes):
    if isinstance(inboxes, MemoryInboxes):
        return len(inboxes._boxes[ONE].senders)
    box = inboxes._of(ONE)
    return box.server.command("HLEN", box.senders, read=int, verb="count senders").perform()


def test_attempts_go_on_over_runs_and_senders_and_steps_begin_anew(inboxes):
    inbox = opened(inboxes)
    inboxes.fence(RUN, SECOND, [ONE])
    put(inboxes, 8, parcel(b"a"), sender=SECOND)
    commit(inbox, 3, take(inbox), ticks=5)
    inboxes.adopt("next", [ONE, TWO])
    assert inboxes.draw("next", ONE) == 2
    assert inboxes.figures([ONE])[ONE].attempts == 1
    found = inboxes.open("next", ONE, 2).opened
    assert (found.step, found.sealed, found.done, found.taken, found.ticks) == (
        0,
        None,
        {},
        None,
        0,
    )
    assert put(inboxes, 1, parcel(b"b"), run="next") == [DONE]


# -- steps -----------------------------------------------------------------------------------------


def test_a_sealed_step_is_found_by_the_next_attempt_which_finishes_it(inboxes):
    first = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b", b"c"))
    a, b, c = take(first)
    covered = covering(1, [c, a], part={b.position: b"\x05"}, ticks=2)
    assert first.seal(covered).perform()
    second = opened(inboxes)
    assert second.opened.sealed == covered
    assert second.opened.step == 0
    assert second.opened.done == {}
    assert second.opened.taken == c.position
    assert second.read([*covered.whole, *covered.part]) == [c, a, b]
    assert second.finish(1).perform()
    assert second.read([*covered.whole, *covered.part]) == [b]
    third = opened(inboxes)
    assert (third.opened.step, third.opened.sealed, third.opened.ticks) == (1, None, 2)
    assert third.opened.done == {b.position: b"\x05"}
    assert take(third) == [b]


def test_a_snapshot_counts_when_its_step_is_finished(inboxes):
    first = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b"))
    a, _ = take(first)
    assert first.opened.snapshot is None
    assert first.seal(covering(1, [a]), b"died in its commit").perform()
    second = opened(inboxes)
    assert second.opened.snapshot is None
    assert second.seal(covering(1, [a]), b"after one").perform()
    assert second.finish(1).perform()
    assert opened(inboxes).opened.snapshot == b"after one"


def test_a_step_without_a_snapshot_leaves_the_one_before(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b"))
    a, b = take(inbox)
    assert inbox.seal(covering(1, [a]), b"after one").perform()
    assert inbox.finish(1).perform()
    assert inbox.seal(covering(2, [b])).perform()
    assert inbox.finish(2).perform()
    assert opened(inboxes).opened.snapshot == b"after one"


def test_another_run_finds_the_snapshots_of_earlier_ones_until_they_are_forgotten(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b"))
    a, b = take(inbox)
    assert inbox.seal(covering(1, [a]), b"finished").perform()
    assert inbox.finish(1).perform()
    assert inbox.seal(covering(2, [b]), b"sealed").perform()
    task = ONE
    inboxes.adopt("next", [task])
    inboxes.adopt("next but one", [])
    assert sorted(inboxes.snapshots("next but one")) == [(task, b"finished"), (task, b"sealed")]
    with pytest.raises(StaleAttemptError):
        inboxes.snapshots("next")
    inboxes.forget_snapshot("next but one", task)
    inboxes.forget_snapshot("next but one", task)
    assert inboxes.snapshots("next but one") == []


def test_the_snapshot_of_a_task_that_the_topology_no_longer_has_stays_until_it_is_forgotten(
    inboxes,
):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    commit(inbox, 1, take(inbox))
    assert inbox.seal(Covered(step=2, ticks=1), b"holds a").perform()
    assert inbox.finish(2).perform()
    inboxes.adopt("next", [TWO])
    assert inboxes.snapshots("next") == [(ONE, b"holds a")]
    inboxes.forget_snapshot("next", ONE)
    inboxes.adopt("third", [TWO])
    assert not inboxes.figures([ONE])[ONE].adopted


def test_an_entry_is_done_in_part_over_several_steps(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b", tuples=[5, 4]))
    a, b = take(inbox)
    assert commit(inbox, 1, [], part={a.position: b"\x01", b.position: b"\x08"})
    assert commit(inbox, 2, [], part={a.position: b"\x03"})
    assert opened(inboxes).opened.done == {a.position: b"\x03", b.position: b"\x08"}
    assert inboxes.figures([ONE])[ONE].tuples == 9, "no room before an entry is whole"
    last = opened(inboxes)
    assert commit(last, 3, [a])
    assert opened(inboxes).opened.done == {b.position: b"\x08"}
    assert inboxes.figures([ONE])[ONE].tuples == 4


def test_a_step_may_cover_nothing_but_ticks(inboxes):
    inbox = opened(inboxes)
    assert commit(inbox, 1, [], ticks=1)
    assert commit(inbox, 2, [], ticks=2)
    assert opened(inboxes).opened.ticks == 2


def test_a_step_is_sealed_once_and_only_a_sealed_one_is_finished(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b"))
    a, b = take(inbox)
    with pytest.raises(ValueError, match="never sealed"):
        inbox.finish(1).perform()
    assert inbox.seal(covering(1, [a])).perform()
    assert inbox.seal(covering(1, [a, b])).perform(), "what was sealed first counts"
    with pytest.raises(ValueError, match="another step is sealed"):
        inbox.seal(covering(2, [b])).perform()
    with pytest.raises(ValueError, match="never sealed"):
        inbox.finish(2).perform()
    assert inbox.finish(1).perform()
    assert take(opened(inboxes)) == [b]


def test_a_seal_of_thousands_of_entries_is_found_and_finished(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(*(b"%d" % i for i in range(5000)), bounded=False))
    taken = take(inbox, tuples=10_000)
    part = {entry.position: b"\x01" for entry in taken[4500:]}
    assert inbox.seal(covering(1, taken[:4500], part=part)).perform()
    second = opened(inboxes)
    assert second.opened.sealed == covering(1, taken[:4500], part=part)
    assert second.read([entry.position for entry in taken]) == taken
    assert second.finish(1).perform()
    assert take(second) == taken[4500:]
    assert opened(inboxes).opened.done == part


def test_what_was_taken_last_stays_known_over_attempts_that_take_nothing(inboxes):
    assert opened(inboxes).opened.taken is None
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b"))
    a, b = take(inbox)
    opened(inboxes)
    careful = opened(inboxes)
    assert careful.opened.taken == b.position
    assert take(careful, tuples=1) == [a]
    assert opened(inboxes).opened.taken == a.position


# -- another run -----------------------------------------------------------------------------------


def test_drained_entries_are_found_again_until_they_are_discarded(inboxes):
    put(inboxes, 1, parcel(b"a", b"b", tuples=[2, 3]), parcel(b"c", target=TWO))
    inboxes.adopt("next", [ONE, TWO])
    found = inboxes.drain("next")
    assert [(task, payloads(entries)) for task, entries in found] == [
        (ONE, [b"a", b"b"]),
        (TWO, [b"c"]),
    ]
    a, b = found[0][1]
    inboxes.discard("next", ONE, [a.position])
    # The driver dies here: its roots are released, but not all entries are discarded.
    inboxes.adopt("third", [ONE, TWO])
    assert [(task, payloads(entries)) for task, entries in inboxes.drain("third")] == [
        (ONE, [b"b"]),
        (TWO, [b"c"]),
    ]
    assert inboxes.figures([ONE])[ONE].tuples == 3
    for _ in range(2):
        inboxes.discard("third", ONE, [a.position, b.position])
    inboxes.discard("third", TWO, [found[1][1][0].position])
    assert inboxes.drain("third") == []
    assert inboxes.figures([ONE])[ONE].tuples == 0
    assert put(inboxes, 1, parcel(b"d"), run="third") == [DONE]
    assert payloads(take(opened(inboxes, run="third"))) == [b"d"]


def test_inboxes_of_tasks_that_the_topology_no_longer_has_are_drained_and_forgotten(inboxes):
    put(inboxes, 1, parcel(b"a"), parcel(b"b", target=TWO))
    inboxes.adopt("next", [TWO])
    found = dict(inboxes.drain("next"))
    assert payloads(found[ONE]) == [b"a"]
    inboxes.discard("next", ONE, [found[ONE][0].position])
    inboxes.adopt("third", [TWO])
    assert not inboxes.figures([ONE])[ONE].adopted
    assert dict(inboxes.drain("third")) == {TWO: found[TWO]}


def test_draining_brings_all_of_a_long_inbox_in_pieces(inboxes):
    put(inboxes, 1, parcel(*(b"%d" % i for i in range(6)), tuples=[4000] * 6, bounded=False))
    drained = []
    while found := inboxes.drain(RUN):
        ((task, entries),) = found
        assert len(entries) == 2
        inboxes.discard(RUN, task, [entry.position for entry in entries])
        drained += payloads(entries)
    assert drained == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_the_inboxes_of_some_tasks_are_drained_alone_in_the_given_order(inboxes):
    put(inboxes, 1, parcel(b"a", b"b"), parcel(b"c", target=TWO))
    for only, found in (
        ([TWO], [(TWO, [b"c"])]),
        ([TWO, ONE], [(TWO, [b"c"]), (ONE, [b"a", b"b"])]),
        ([], []),
    ):
        drained = inboxes.drain(RUN, only)
        assert [(task, payloads(entries)) for task, entries in drained] == found
    inboxes.adopt("next", [ONE, TWO])
    with pytest.raises(StaleAttemptError):
        inboxes.drain(RUN, [TWO])


def test_progress_on_a_drained_entry_is_forgotten(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    taken = take(inbox)
    commit(inbox, 1, [], part={taken[0].position: b"\x01"})
    inboxes.discard(RUN, ONE, [taken[0].position])
    later = opened(inboxes)
    assert later.opened.done == {}
    assert take(later) == []


# -- figures ---------------------------------------------------------------------------------------


def test_figures_count_what_is_held_and_say_who_lives(inboxes, wait_until):
    assert inboxes.figures([ONE])[ONE].seen_s is None
    inbox = opened(inboxes)
    assert inboxes.beat(RUN, {ONE: 1, TWO: 0}, {}, "").stale == []
    put(inboxes, 1, parcel(b"aa", b"b", tuples=[2, 3]))
    wait_until(lambda: inboxes.figures([ONE])[ONE].oldest_s > 0.01, 5, "the entry to grow old")
    found = inboxes.figures([ONE, TWO])
    assert (found[ONE].tuples, found[ONE].bytes, found[ONE].attempts) == (5, 3, 1)
    assert 0 <= found[ONE].seen_s < 5
    assert found[TWO].oldest_s == 0
    commit(inbox, 1, take(inbox))
    assert inboxes.figures([ONE])[ONE].oldest_s == 0
    opened(inboxes)
    assert inboxes.beat(RUN, {ONE: 1, TWO: 0}, {}, "").stale == [ONE]


def test_a_beat_hears_that_its_attempt_is_asked_to_leave_and_later_ones_are_not(inboxes):
    def leaving(attempt):
        return inboxes.beat(RUN, {ONE: attempt, TWO: 0}, {}, "").leaving

    opened(inboxes)
    assert leaving(1) == []
    inboxes.leave(RUN, [ONE])
    inboxes.leave(RUN, [ONE, GONE])
    assert (leaving(1), leaving(1)) == ([ONE], [ONE])
    opened(inboxes)
    assert leaving(2) == []
    inboxes.leave(RUN, [ONE])
    assert leaving(2) == [ONE]
    inboxes.adopt("8", [ONE, TWO])
    inboxes.leave(RUN, [ONE])
    opened(inboxes, run="8")
    assert inboxes.beat("8", {ONE: 3}, {}, "").leaving == []


def test_a_beat_says_for_how_long_a_task_has_been_in_one_call_until_it_says_of_none(inboxes):
    opened(inboxes)
    assert inboxes.figures([ONE])[ONE].doing_s is None
    inboxes.beat(RUN, {ONE: 1, TWO: 0}, {ONE: 3600.5}, "")
    found = inboxes.figures([ONE, TWO])
    assert 3600.5 <= found[ONE].doing_s < 3610
    assert found[TWO].doing_s is None
    inboxes.beat(RUN, {ONE: 1}, {}, "")
    assert inboxes.figures([ONE])[ONE].doing_s is None
    inboxes.beat(RUN, {ONE: 1}, {ONE: 9}, "")
    inboxes.adopt("a later run", [ONE, TWO])
    assert inboxes.figures([ONE])[ONE].doing_s is None, "it was another run's"


def test_a_beat_says_where_the_process_runs_until_another_run_begins(inboxes):
    opened(inboxes)
    assert inboxes.figures([ONE])[ONE].place == ""
    inboxes.beat(RUN, {ONE: 1, TWO: 0}, {}, place="node-3/17/1700000000")
    assert inboxes.figures([ONE])[ONE].place == "node-3/17/1700000000"
    inboxes.adopt("a later run", [ONE, TWO])
    assert inboxes.figures([ONE])[ONE].place == ""


def test_a_beat_says_how_many_tuples_wait_for_a_retry_until_it_says_of_none(inboxes):
    opened(inboxes)
    assert inboxes.figures([ONE])[ONE].retrying == 0
    inboxes.beat(RUN, {ONE: 1, TWO: 0}, {}, "", {ONE: Holdings(retrying=12)})
    found = inboxes.figures([ONE, TWO])
    assert (found[ONE].retrying, found[TWO].retrying) == (12, 0)
    inboxes.beat(RUN, {ONE: 1}, {}, "")
    assert inboxes.figures([ONE])[ONE].retrying == 0
    inboxes.beat(RUN, {ONE: 1}, {}, "", {ONE: Holdings(retrying=3)})
    inboxes.adopt("a later run", [ONE, TWO])
    assert inboxes.figures([ONE])[ONE].retrying == 0, "it was another run's"


def test_a_beat_says_which_windows_are_open_until_it_says_of_none(inboxes):
    def told():
        found = inboxes.figures([ONE, TWO])
        return found[ONE].windows, found[TWO].windows

    opened(inboxes)
    assert told() == (None, None)
    none_yet = OpenWindows(number=0, tuples=0)
    for windows in (
        none_yet,
        OpenWindows(number=12, tuples=70, watermark_us=1_790_000_000_123_456),
        OpenWindows(number=9, tuples=200_000, watermark_us=-(2**61)),
        OpenWindows(number=1, tuples=1, watermark_us=0),
    ):
        inboxes.beat(RUN, {ONE: 1, TWO: 0}, {}, "", {ONE: Holdings(windows=windows)})
        assert told() == (windows, None)
    opened(inboxes)
    inboxes.beat(RUN, {ONE: 1}, {}, "", {ONE: Holdings(windows=none_yet)})
    assert told() == (windows, None), "an older attempt says nothing of it"
    inboxes.beat(RUN, {ONE: 2}, {}, "")
    assert told() == (None, None)
    inboxes.beat(RUN, {ONE: 2}, {}, "", {ONE: Holdings(windows=windows)})
    inboxes.adopt("a later run", [ONE, TWO])
    assert told() == (None, None), "they were another run's"


# -- waiting ---------------------------------------------------------------------------------------


def waiting(inbox, *, wait=SOON):
    """Take in a thread; return the thread and a list for its result."""
    became = []

    def run():
        try:
            became.append(payloads(take(inbox, wait=wait)))
        except StaleAttemptError:
            became.append("stale")

    thread = threading.Thread(target=run)
    thread.start()
    # the wait cannot be seen from outside; without it the test holds too
    time.sleep(0.05)
    return thread, became


def test_an_append_ends_a_wait(inboxes):
    inbox = opened(inboxes)
    for number in range(1, 4):
        thread, became = waiting(inbox)
        began = time.monotonic()
        put(inboxes, number, parcel(b"a%d" % number))
        thread.join(10)
        assert became == [[b"a%d" % number]]
        assert time.monotonic() - began < 10


def test_a_wait_ends_when_it_is_over_and_none_begins_with_zero(inboxes):
    inbox = opened(inboxes)
    began = time.monotonic()
    assert take(inbox, wait=timedelta(milliseconds=150)) == []
    assert 0.14 < time.monotonic() - began < 15


def test_wake_ends_a_wait_and_one_that_has_not_begun(inboxes):
    inbox = opened(inboxes)
    began = time.monotonic()
    thread, became = waiting(inbox)
    inbox.wake()
    thread.join(10)
    assert became == [[]]
    inbox.wake()
    assert take(inbox, wait=SOON) == []
    assert time.monotonic() - began < 15
    assert take(inbox, wait=timedelta(milliseconds=50)) == []


@pytest.mark.parametrize("by", ["a newer attempt", "another run"])
def test_an_attempt_that_waits_learns_that_it_is_stale(inboxes, by):
    inbox = opened(inboxes)
    began = time.monotonic()
    thread, became = waiting(inbox)
    if by == "another run":
        inboxes.adopt("next", [ONE, TWO])
    else:
        opened(inboxes)
    thread.join(10)
    assert became == ["stale"]
    assert time.monotonic() - began < 10


def test_entries_that_a_take_left_are_taken_without_a_wait(inboxes):
    inbox = opened(inboxes)
    assert take(inbox) == []
    put(inboxes, 1, parcel(b"a", b"b", b"c"))
    began = time.monotonic()
    for payload in (b"a", b"b", b"c"):
        assert payloads(take(inbox, tuples=1, wait=SOON)) == [payload]
    assert time.monotonic() - began < 5
    assert take(inbox, tuples=1, wait=timedelta(milliseconds=50)) == []


def test_a_discarded_entry_does_not_keep_a_wait_from_waiting(inboxes):
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    ((_, entries),) = inboxes.drain(RUN)
    inboxes.discard(RUN, ONE, [entries[0].position])
    assert take(inbox) == []
    began = time.monotonic()
    assert take(inbox, wait=timedelta(milliseconds=100)) == []
    assert time.monotonic() - began > 0.09


def test_senders_in_many_threads_lose_and_repeat_nothing(inboxes):
    inbox = opened(inboxes)

    def send(task):
        for number in range(1, 51):
            sender = Sender(task=task, attempt=1)
            effect = inboxes.append(
                RUN, sender, number, [parcel(b"%d %d" % (task, number), bounded=False)]
            )[0]
            assert effect.perform() is DONE
            assert effect.perform() is REPEATED

    threads = [threading.Thread(target=send, args=[task]) for task in range(20, 24)]
    for thread in threads:
        thread.start()
    taken = []
    while len(taken) < 200:
        found = take(inbox, tuples=16, wait=SOON)
        assert found
        taken += payloads(found)
    for thread in threads:
        thread.join()
    assert take(inbox) == []
    for task in range(20, 24):
        own = [payload for payload in taken if payload.startswith(b"%d " % task)]
        assert own == [b"%d %d" % (task, number) for number in range(1, 51)]
