"""The contract of ``StateStore``, run over every backend."""

from __future__ import annotations

import pytest

from tests.support.states import begin, commit_turn
from tiercel.acker.effects import LocalEffect, perform_in_turn
from tiercel.acker.ledger import Applied
from tiercel.spark_jobs.errors import BadStateError, StaleTurnError
from tiercel.spark_jobs.state.store import Writes

A = b'"a"'
B = b'"b"'
C = b"[1,2]"
LIMIT = 2**63 - 1


def put(**values):
    return Writes(puts={b'"%s"' % name.encode(): value for name, value in values.items()})


def add(**amounts):
    return Writes(increments={b'"%s"' % name.encode(): amount for name, amount in amounts.items()})


def drop(*names):
    return Writes(deletes=[b'"%s"' % name.encode() for name in names])


def now(store, component="count"):
    return dict(store.entries(component))


def commit(store, step, writes, *, task=0, digest="d"):
    return commit_turn(begin(store, "count", task, step), writes, digest)


def test_what_is_committed_is_there_for_the_next_step(store):
    turn = begin(store, "count", 0, 0)
    assert turn.read([A, B]) == [None, None]
    assert (
        commit_turn(turn, Writes(puts={A: b"1", C: b'"x"'}, increments={B: -5}), "d")
        is Applied.FRESH
    )
    turn = begin(store, "count", 0, 1)
    assert turn.committed_digest is None
    assert turn.read([C, A, b'"no"', B]) == [b'"x"', b"1", None, b"-5"]
    assert sorted(turn.scan()) == sorted([(A, b"1"), (B, b"-5"), (C, b'"x"')])
    assert (
        commit_turn(turn, Writes(puts={A: b"2"}, deletes=[C, b'"no"'], increments={B: 7}), "d")
        is Applied.FRESH
    )
    assert now(store) == {A: b"2", B: b"2"}


def test_what_is_there_now_is_read_outside_any_turn(store):
    assert store.values("count", [A]) == [None]
    assert store.count("count") == 0
    commit(store, 0, Writes(puts={A: b"1", C: b'"x"'}, increments={B: -5}))
    assert store.values("count", [C, b'"no"', A, A, B]) == [b'"x"', None, b"1", b"1", b"-5"]
    assert store.values("count", []) == []
    assert store.values("other", [A]) == [None]
    assert (store.count("count"), store.count("other")) == (3, 0)
    assert sorted(store.entries("count", 1)) == [(A, b"1"), (B, b"-5"), (C, b'"x"')]
    begun = begin(store, "count", 0, 1)
    assert store.values("count", [A]) == [b"1"], "to look is no turn"
    assert commit_turn(begun, put(a=b"2"), "d") is Applied.FRESH
    assert store.values("count", [A]) == [b"2"]


def are_refused(store, turns):
    """Check that tasks 1 and up of an earlier run neither commit these turns nor begin others."""
    for task, turn in enumerate(turns, 1):
        with pytest.raises(StaleTurnError):
            commit_turn(turn, add(b=1), "d")
        with pytest.raises(StaleTurnError):
            begin(store, "count", task, 8)


def test_a_run_that_begins_ends_the_turns_of_those_before_and_keeps_what_they_committed(run):
    first = run(1)
    turns = [begin(first, "count", task, 7) for task in range(3)]
    commit_turn(turns[0], put(a=b"1"), "d")
    second = run(2)
    for _ in range(2):
        second.begin_run("count")
        second.begin_run("other")
    assert now(second) == {A: b"1"}
    are_refused(first, turns[1:])
    assert commit(second, 1, add(b=1), task=2) is Applied.FRESH
    assert now(second) == {A: b"1", B: b"1"}


def test_a_run_with_fewer_tasks_keeps_what_the_others_committed_and_refuses_them(run):
    first = run(1)
    turns = [begin(first, "count", task, 7) for task in range(4)]
    commit_turn(turns[3], put(a=b"1"), "d")
    second = run(2)
    for _ in range(2):
        second.begin_run("count", 2)
    assert now(second) == {A: b"1"}
    are_refused(first, turns[1:])
    third = run(3)
    third.begin_run("count", 4)
    assert commit(third, 1, add(b=1), task=3) is Applied.FRESH
    assert begin(third, "count", 3, 1).committed_digest == "d"
    assert now(third) == {A: b"1", B: b"1"}


def test_reading_nothing_costs_nothing(store):
    assert begin(store, "count", 0, 0).read([]) == []


def test_a_turn_may_read_as_it_begins(store):
    commit(store, 0, Writes(puts={A: b"1", C: b"x"}))
    turn = store.begin("count", 0, 1, [C, A, B]).perform()
    assert turn.found == {A: b"1", B: None, C: b"x"}
    commit_turn(turn, Writes(puts={A: b"2", B: b"3"}, deletes=[C]), "d")
    assert store.begin("count", 0, 1, [B, C, A]).perform().found == {A: b"1", B: None, C: b"x"}
    assert store.begin("count", 0, 2, [B, C, A]).perform().found == {A: b"2", B: b"3", C: None}


def test_what_is_prepared_takes_effect_when_it_is_made_and_once(store):
    beginning = store.begin("count", 0, 0)
    zombie = beginning.perform()
    turn = beginning.perform()
    with pytest.raises(StaleTurnError):
        commit_turn(zombie, add(a=1), "d")
    writing = turn.writing(add(a=1), "d")
    assert now(store) == {}
    for _ in range(3):
        assert all(perform_in_turn(writing))
    assert now(store) == {A: b"1"}
    assert store.begin("count", 0, 1, [A]).perform().found == {A: b"1"}


def test_a_call_that_is_refused_keeps_a_turn_from_beginning_and_a_write_from_being_made(store):
    turn = begin(store, "count", 0, 1)
    refused = LocalEffect(lambda: False)
    assert perform_in_turn([refused, store.begin("count", 0, 2)]) == [False]
    assert perform_in_turn([refused, *turn.writing(add(b=1), "d")]) == [False]
    assert now(store) == {}
    assert perform_in_turn([LocalEffect(lambda: True), *turn.writing(add(a=1), "d")]) == [
        True,
        *[True] * len(turn.writing(add(a=1), "d")),
    ]
    assert now(store) == {A: b"1"}


def test_components_have_states_of_their_own(store):
    commit_turn(begin(store, "one: *{", 0, 0), put(a=b"1"), "d")
    commit_turn(begin(store, "one", 0, 0), put(a=b"2"), "d")
    assert now(store, "one: *{") == {A: b"1"}
    assert now(store, "one") == {A: b"2"}
    assert now(store, "other") == {}


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00\xff", b"-", b"=", b"x" * 100_000],
    ids=["empty", "binary", "-", "=", "long"],
)
def test_values_are_what_was_put_also_after_they_were_taken_back(store, value):
    commit(store, 0, put(a=value))
    commit(store, 1, put(a=b"other"), digest="first")
    assert begin(store, "count", 0, 1).read([A]) == [value]


# -- attempts at one step --------------------------------------------------------------------------


def test_an_attempt_that_never_committed_leaves_nothing(store):
    commit(store, 0, add(a=1))
    begin(store, "count", 0, 1)
    assert commit(store, 1, add(a=1)) is Applied.FRESH
    assert now(store) == {A: b"2"}


def test_a_later_attempt_reads_what_was_there_before_the_first_one_committed(store):
    commit(store, 0, Writes(puts={A: b"old", C: b"7"}, increments={B: 3}))
    commit(
        store,
        1,
        Writes(puts={A: b"new", b'"fresh"': b"1"}, deletes=[C], increments={B: 4, b'"zero"': 5}),
        digest="d1",
    )
    turn = begin(store, "count", 0, 1)
    assert turn.committed_digest == "d1"
    assert turn.read([A, B, C, b'"fresh"', b'"zero"']) == [b"old", b"3", b"7", None, None]
    assert sorted(turn.scan()) == sorted([(A, b"old"), (B, b"3"), (C, b"7")])


def test_the_same_work_again_writes_nothing_however_often(store):
    work = Writes(puts={A: b"x"}, deletes=[C], increments={B: 2})
    assert commit(store, 0, work) is Applied.FRESH
    for _ in range(3):
        assert commit(store, 0, work) is Applied.REPEATED
    assert now(store) == {A: b"x", B: b"2"}
    commit(store, 1, add(b=1))
    assert now(store) == {A: b"x", B: b"3"}


def test_other_work_after_a_commit_is_told_so_and_the_first_stays(store):
    """Messages that the first attempt acked are gone from the queue, so they must stay counted."""
    commit(store, 0, add(a=1, b=1), digest="d1")
    assert commit(store, 0, add(a=1), digest="d2") is Applied.CONFLICTING
    assert commit(store, 0, Writes(), digest="d3") is Applied.CONFLICTING
    assert commit(store, 0, add(a=1, b=1), digest="d1") is Applied.REPEATED
    assert now(store) == {A: b"1", B: b"1"}


def test_without_writes_nothing_is_committed(store):
    assert commit(store, 0, Writes()) is Applied.FRESH
    assert begin(store, "count", 0, 0).committed_digest is None


def test_an_earlier_attempt_that_is_still_alive_is_refused(store):
    first = begin(store, "count", 0, 5)
    second = begin(store, "count", 0, 5)
    with pytest.raises(StaleTurnError):
        commit_turn(first, add(a=1), "d")
    assert commit_turn(second, add(a=1), "d") is Applied.FRESH
    with pytest.raises(StaleTurnError):
        commit_turn(first, add(a=1), "d")
    assert now(store) == {A: b"1"}


# -- order of steps and runs -----------------------------------------------------------------------


def test_an_older_step_is_refused_as_soon_as_a_later_one_began(store):
    zombie = begin(store, "count", 0, 3)
    begin(store, "count", 0, 4)
    with pytest.raises(StaleTurnError):
        commit_turn(zombie, put(a=b"1"), "d")
    with pytest.raises(StaleTurnError):
        begin(store, "count", 0, 3)
    assert now(store) == {}


def test_a_later_run_goes_on_with_the_entries_and_its_own_numbers(run):
    commit(run(1000), 900, add(a=1))
    later = run(2000)
    assert commit(later, 0, add(a=1)) is Applied.FRESH
    assert now(later) == {A: b"2"}


@pytest.mark.parametrize("task", [0, 1, 7])
def test_nothing_of_an_earlier_run_is_written_any_more_by_any_task_of_the_component(run, task):
    """This includes a task that the later run, with fewer tasks, does not have."""
    earlier = run(1000)
    later = run(2000)
    zombie = begin(earlier, "count", task, 12)
    begin(later, "count", 0, 0)
    with pytest.raises(StaleTurnError):
        commit_turn(zombie, put(a=b"1"), "d")
    with pytest.raises(StaleTurnError):
        begin(earlier, "count", task, 13)
    assert commit_turn(begin(earlier, "other", 0, 0), put(a=b"1"), "d") is Applied.FRESH
    assert now(later) == {}


def test_runs_are_compared_as_numbers_and_not_as_text(run):
    begin(run(999), "count", 0, 9)
    assert commit(run(1000), 10, add(a=1)) is Applied.FRESH
    commit(run(1000), 100, add(a=1))
    with pytest.raises(StaleTurnError):
        begin(run(999), "count", 0, 2000)


# -- several tasks ---------------------------------------------------------------------------------


def test_increments_of_several_tasks_all_count_whoever_repeats(store):
    turns = [begin(store, "count", task, 0) for task in range(3)]
    assert [turn.read([A]) for turn in turns] == [[None]] * 3
    for turn, amount in zip(turns, (1, 10, 100), strict=True):
        commit_turn(turn, add(a=amount), "d")
    assert commit(store, 0, add(a=10), task=1) is Applied.REPEATED
    assert begin(store, "count", 1, 0).read([A]) == [b"101"]
    assert now(store) == {A: b"111"}


def test_an_increment_that_another_task_has_put_something_over_has_nothing_to_take_back(store):
    commit(store, 0, add(a=5), task=1)
    commit(store, 0, put(a=b'"text"'))
    assert begin(store, "count", 1, 0).read([A]) == [b'"text"']


@pytest.mark.parametrize("found", [b'"text"', b"1.5", b"", b"%d" % LIMIT])
def test_an_increment_of_what_is_no_number_any_more_is_an_error_and_nothing_of_it_stays(
    store, found
):
    commit(store, 0, put(b=found))
    commit(store, 0, put(a=b"1"), task=1)
    turn = begin(store, "count", 0, 1)
    with pytest.raises(BadStateError, match="64 bits"):
        commit_turn(
            turn, Writes(increments={A: 1, b'"new"': 2, B: 3, C: 4}, puts={b'"c"': b"1"}), "d"
        )
    turn = begin(store, "count", 0, 1)
    assert now(store) == {A: b"1", B: found}
    assert commit_turn(turn, add(a=1), "d") is Applied.FRESH
    assert now(store) == {A: b"2", B: found}


@pytest.mark.parametrize(
    ("start", "by"), [(0, LIMIT), (-LIMIT - 1, LIMIT), (LIMIT, -LIMIT), (2**53, 1), (-1, -(2**62))]
)
def test_all_64_bits_count_and_are_taken_back(store, start, by):
    commit(store, 0, put(a=b"%d" % start))
    commit(store, 1, add(a=by))
    assert now(store) == {A: b"%d" % (start + by)}
    assert begin(store, "count", 0, 1).read([A]) == [b"%d" % start]


# -- size ------------------------------------------------------------------------------------------


def test_ten_thousand_writes_of_every_kind_are_one_commit(store):
    before = Writes(puts={b"%d" % n: b"%d" % n for n in range(10_000)})
    commit(store, 0, before)
    assert (
        commit(
            store,
            1,
            Writes(
                puts={b"%d" % n: b"new" for n in range(5000)},
                deletes=[b"%d" % n for n in range(5000, 10_000)],
                increments={b"%d" % n: n for n in range(10_000, 16_000)},
            ),
        )
        is Applied.FRESH
    )
    after = now(store)
    assert after == {b"%d" % n: b"new" for n in range(5000)} | {
        b"%d" % n: b"%d" % n for n in range(10_000, 16_000)
    }
    turn = begin(store, "count", 0, 1)
    fields = [b"%d" % n for n in range(16_000)]
    assert dict(zip(fields, turn.read(fields), strict=True)) == dict.fromkeys(fields) | before.puts
    assert dict(turn.scan()) == before.puts
    assert store.begin("count", 0, 1, fields).perform().found == dict.fromkeys(fields) | before.puts


# -- small and large numbers, strange keys ---------------------------------------------------------

NUMBERS = [0, 1, -1, 10**14, 10**15 - 1, -(10**15) + 1, 2**50, 2**53 - 1, 2**53 + 1, -(2**62)]


@pytest.mark.parametrize("by", [1, -1, 2**50 - 1, -(2**50) + 1, 2**50, 2**53 + 1, -(2**61)])
def test_every_number_is_added_exactly_and_taken_back(store, by):
    fields = [b"%d" % number for number in range(len(NUMBERS))]
    before = dict(zip(fields, [b"%d" % number for number in NUMBERS], strict=True))
    commit(store, 0, Writes(puts=before))
    commit(store, 1, Writes(increments=dict.fromkeys([*fields, b"new"], by)))
    after = [b"%d" % (number + by) for number in (*NUMBERS, 0)]
    assert now(store) == dict(zip([*fields, b"new"], after, strict=True))
    assert begin(store, "count", 0, 1).read([*fields, b"new"]) == [*before.values(), None]


@pytest.mark.parametrize("key", [b"a\nb", b"\x00", b"", b"\xff\xfe", b"x" * 70_000, b'"%d"', b"+1"])
def test_a_key_may_have_any_bytes(store, key):
    other = key + b"\n"
    commit(store, 0, Writes(increments={key: 3, other: 4}))
    commit(store, 1, Writes(increments={key: -3, other: 1}), digest="first")
    assert now(store) == {key: b"0", other: b"5"}
    assert begin(store, "count", 0, 1).read([other, key]) == [b"4", b"3"]
    assert dict(begin(store, "count", 0, 1).scan()) == {key: b"3", other: b"4"}


def test_a_sum_that_comes_to_zero_is_there_and_one_that_is_taken_back_is_not(store):
    commit(store, 0, add(a=5))
    commit(store, 1, add(a=-5, b=0))
    assert now(store) == {A: b"0", B: b"0"}
    assert begin(store, "count", 0, 1).read([A, B]) == [b"5", None]


@pytest.mark.parametrize("found", [b"007", b"-0", b"+1", b" 1", b"1 ", b"0x1", b"1e3", b"nan"])
def test_a_text_that_lua_takes_for_a_number_is_no_number(store, found):
    """The twin in memory follows Python, which accepts some of these texts."""
    commit(store, 0, put(a=found, b=b"1"))
    turn = begin(store, "count", 0, 1)
    try:
        commit_turn(turn, add(b=1, a=1), "d")
    except BadStateError:
        begin(store, "count", 0, 1)
        assert now(store) == {A: found, B: b"1"}
    else:
        assert now(store)[A] == b"%d" % (int(found) + 1)


def test_a_store_that_loses_nothing_says_so(store, run):
    assert not store.has_lost("count")
    commit(store, 0, add(a=1))
    assert not store.has_lost("count")
    commit(run(2), 0, drop("a"))
    assert not store.has_lost("count")
    assert not run(3).has_lost("count")
    assert now(store) == {}
