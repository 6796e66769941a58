"""Steps in order: what is remembered of them, and that zombies of older steps, attempts and runs
change nothing.
"""

from __future__ import annotations

import pytest

import tiercel.acker.redis_ledger
from tests.support.ledgers import NOW, OTHER, ROOT, THIRD, A, B, C, failure, said, token, updates
from tiercel.acker.effects import perform_all
from tiercel.acker.ledger import Applied, Reply, canonical, total
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis_ledger import RedisLedger, shards_of

STALE = Reply(applied=Applied.STALE)
ROOTS = [high << 40 | 7 for high in range(1, 9)]


def test_an_older_step_is_stale_and_changes_nothing(ledger, feed):
    ledger.register(1, [ROOT, OTHER], [A, B])
    ledger.apply(token(step=1), updates({ROOT: A ^ C}))
    ledger.apply(token(step=2), updates({ROOT: B}))
    for zombie in (updates({ROOT: A ^ C}), updates({ROOT: 0}), updates({ROOT: C ^ B, OTHER: B})):
        assert ledger.apply(token(step=1), zombie).applied is Applied.STALE
    assert ledger.apply(token(step=1), updates(), [failure(ROOT)]) == STALE
    assert ledger.apply(token(step=2), updates({ROOT: B})).applied is Applied.REPEATED
    assert said(feed.read(NOW)) in ({}, {"acked": [OTHER]}), "each shard decides for its own roots"


def test_steps_may_be_left_out(ledger):
    ledger.register(1, [ROOT], [A])
    assert ledger.apply(token(step=7), updates({ROOT: B})).applied is Applied.FRESH
    assert ledger.apply(token(step=2**52), updates({ROOT: B})).applied is Applied.FRESH
    assert ledger.apply(token(step=2**52 - 1), updates({ROOT: B})) == STALE


def test_steps_of_other_tasks_do_not_matter(ledger):
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(1, step=9), updates({ROOT: B}))
    assert ledger.apply(token(11, step=1), updates({ROOT: C})).applied is Applied.FRESH
    assert ledger.apply(token(1, step=9), updates({ROOT: B})).applied is Applied.REPEATED


def test_an_older_attempt_is_stale_once_a_newer_one_was_fenced(ledger, feed):
    ledger.register(1, [ROOT], [A])
    assert ledger.fence("run", 0, 2)
    for step in (0, 1):
        assert ledger.apply(token(step=step, attempt=1), updates({ROOT: A})) == STALE
    assert ledger.pending() == 1
    assert ledger.apply(token(step=0, attempt=2), updates({ROOT: A})).completed == 1
    assert ledger.apply(token(1, attempt=1), updates({ROOT: A})).applied is Applied.FRESH, (
        "another task"
    )


def test_an_older_attempt_is_stale_once_a_newer_one_was_applied(ledger):
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(attempt=1), updates({ROOT: B}))
    assert ledger.apply(token(attempt=2), updates({ROOT: B})).applied is Applied.REPEATED
    assert ledger.apply(token(attempt=1), updates({ROOT: B})) == STALE
    assert ledger.apply(token(step=1, attempt=1), updates({ROOT: C})) == STALE


def test_the_last_step_is_known_to_a_newer_attempt(ledger, feed):
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(attempt=1), updates({ROOT: A ^ C}))
    for _ in range(2):
        assert ledger.fence("run", 0, 2)
    assert ledger.apply(token(attempt=2), updates({ROOT: A ^ C})) == Reply(applied=Applied.REPEATED)
    assert ledger.apply(token(attempt=3), updates({ROOT: A ^ B})) == Reply(
        applied=Applied.CONFLICTING, failed=1
    )
    assert ledger.apply(token(attempt=3), updates({ROOT: A ^ C})) == Reply(applied=Applied.REPEATED)
    assert said(feed.read(NOW)) == {
        "failed": [(ROOT, "__acker", 0, "a repeated step did other work")]
    }


def test_an_attempt_that_was_overtaken_is_told_when_it_fences(ledger):
    assert ledger.fence("run", 3, 5)
    assert ledger.fence("run", 3, 5)
    assert not ledger.fence("run", 3, 4)
    assert ledger.fence("run", 3, 6)
    assert ledger.fence("run", 4, 0)


def test_only_the_current_run_is_applied(ledger):
    ledger.register(1, [ROOT, OTHER], [A, B])
    assert ledger.begin("run")
    assert ledger.apply(token(), updates({ROOT: C})).applied is Applied.FRESH
    assert ledger.begin("next")
    for zombie in (token(), token(step=5), token(2, attempt=9)):
        assert ledger.apply(zombie, updates({ROOT: A, OTHER: B})) == STALE
    assert not ledger.fence("run", 0, 1)
    assert ledger.pending() == 2
    assert ledger.apply(token(run="next"), updates({ROOT: A ^ C})).completed == 1


def test_beginning_the_run_again_forgets_nothing_of_it(ledger):
    ledger.begin("run")
    ledger.register(1, [ROOT], [A])
    ledger.fence("run", 1, 1)
    ledger.apply(token(), updates({ROOT: B}))
    assert ledger.begin("run")
    assert ledger.apply(token(), updates({ROOT: B})).applied is Applied.REPEATED
    assert ledger.apply(token(1), updates({ROOT: B})) == STALE


def test_an_older_driver_does_not_bring_its_run_back(ledger):
    ledger.register(1, [ROOT], [A])
    for run in ("a", "b", "c"):
        assert ledger.begin(run)
    for run in ("a", "b"):
        assert not ledger.begin(run)
        assert ledger.apply(token(run=run), updates({ROOT: A})) == STALE
    assert ledger.begin("c")
    assert ledger.apply(token(run="c"), updates({ROOT: A})).completed == 1


def test_a_run_with_a_lower_number_is_over_though_it_never_began(ledger):
    ledger.register(1, [ROOT], [A])
    assert ledger.begin("1763800000000001")
    assert not ledger.begin("1763800000000000")
    assert not ledger.begin("1763800000000000-ended")
    assert not ledger.begin("99")
    assert ledger.apply(token(run="1763800000000001"), updates({ROOT: C})).applied is Applied.FRESH
    assert ledger.begin("1763800000000001-ended")
    assert not ledger.begin("1763800000000001")
    assert ledger.begin("1763800000000002")
    assert ledger.apply(token(run="1763800000000002"), updates({ROOT: A ^ C})).completed == 1


def test_where_no_run_has_begun_each_has_steps_of_its_own(ledger):
    ledger.register(1, [ROOT], [A])
    assert (
        ledger.apply(token(step=4, attempt=4, run="a"), updates({ROOT: B})).applied is Applied.FRESH
    )
    assert ledger.apply(token(run="b"), updates({ROOT: C})).applied is Applied.FRESH
    assert (
        ledger.apply(token(step=4, attempt=4, run="a"), updates({ROOT: B})).applied
        is Applied.REPEATED
    )
    assert ledger.begin("b")
    assert ledger.apply(token(run="b"), updates({ROOT: C})).applied is Applied.REPEATED
    assert ledger.apply(token(step=5, attempt=4, run="a"), updates({ROOT: B})) == STALE


def test_prepared_calls_do_nothing_until_they_are_made(ledger, feed):
    ledger.register(1, [ROOT, OTHER, THIRD], [A, B, C])
    prepared = ledger.applying(token(), updates({ROOT: A, OTHER: B}), [failure(THIRD)])
    assert ledger.pending() == 3
    assert total(perform_all(prepared)) == Reply(applied=Applied.FRESH, completed=2, failed=1)
    assert total(perform_all(prepared)) == Reply(applied=Applied.REPEATED)
    assert total(perform_all(ledger.applying(token(), updates()))) == Reply(applied=Applied.FRESH)
    assert said(feed.read(NOW)) == {
        "acked": sorted([ROOT, OTHER]),
        "failed": [(THIRD, "bolt", 7, "boom")],
    }


def test_a_reply_is_stale_if_a_part_is():
    parts = [Reply(applied=verdict, late=1) for verdict in Applied]
    assert total(parts) == Reply(applied=Applied.STALE, late=4)
    assert total(parts[:3]).applied is Applied.CONFLICTING
    assert total(parts[:2]).applied is Applied.FRESH


@pytest.fixture
def open_redis(make_spec):
    opened = []

    def make(**changed) -> RedisLedger:
        opened.append(RedisLedger(make_spec(**changed)))
        return opened[-1]

    yield make
    for made in opened:
        made.close()


def pass_hours(redis_url: str, ledger: RedisLedger) -> None:
    """Delete each key that would expire while timeouts are reset and the feed is read."""
    prefix = f"tiercel:{{{ledger._spec.topology}:0}}:"
    with connect(redis_url) as client:
        for key in client.keys(prefix + "*"):
            name = key.decode().removeprefix(prefix)
            if client.pttl(key) != -1 and not name.startswith(
                ("b:", "feed:", "mark", "reader:", "registered:")
            ):
                client.delete(key)


def test_a_step_is_known_hours_later(open_redis, redis_url):
    """An executor is cut off for many timeouts, and repeats its step when it is back."""
    ledger = open_redis()
    feed = ledger.feed(1)
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(1), updates({ROOT: A ^ C}))
    pass_hours(redis_url, ledger)
    assert ledger.apply(token(1), updates({ROOT: A ^ C})) == Reply(applied=Applied.REPEATED)
    assert ledger.apply(token(2), updates({ROOT: C})).completed == 1
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    feed.close()


def test_repeats_that_differ_never_ack_a_tree_that_is_not_done_however_late_they_come(
    open_redis, redis_url
):
    ledger = open_redis()
    ledger.register(1, [ROOT], [A])
    verdicts = []
    for child in (C, 0, C):
        verdicts.append(ledger.apply(token(), updates({ROOT: A ^ child})))
        pass_hours(redis_url, ledger)
    assert verdicts == [
        Reply(applied=Applied.FRESH),
        Reply(applied=Applied.CONFLICTING, failed=1),
        Reply(applied=Applied.REPEATED),
    ]


def test_each_shard_remembers_the_steps_that_named_its_roots(open_redis):
    ledger = open_redis(shards=2)
    shard = dict(
        zip(
            ROOTS,
            shards_of(canonical(updates(dict.fromkeys(ROOTS, 0))).roots, 2).tolist(),
            strict=True,
        )
    )
    here = next(root for root in ROOTS if shard[root] == 0)
    there = next(root for root in ROOTS if shard[root] == 1)
    ledger.register(1, [here, there], [A, B])
    ledger.apply(token(step=1), updates({here: C, there: C}))
    ledger.apply(token(step=2), updates({here: C}))
    assert ledger.apply(token(step=1), updates({here: C, there: C})) == STALE, "and repeated there"
    assert ledger.apply(token(step=1), updates({there: C})) == Reply(
        applied=Applied.CONFLICTING, failed=1
    )
    assert ledger.apply(token(step=2), updates({here: C})).applied is Applied.REPEATED
    ledger.fence("run", 0, 1)
    for root in (here, there):
        assert ledger.apply(token(step=3), updates({root: A})) == STALE
    assert ledger.begin("next")
    for root in (here, there):
        assert ledger.apply(token(step=3, attempt=1), updates({root: A})) == STALE
    assert ledger.pending() == 1


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(tiercel.acker.redis_ledger, "SLICE", 2)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("shards", [1, 2])
def test_what_a_dead_attempt_left_undone_of_a_big_step_is_done_once(open_redis, shards):
    ledger = open_redis(shards=shards)
    feed = ledger.feed(1)
    ledger.register(1, ROOTS, [A] * 8)
    ledger.apply(token(attempt=1), updates(dict.fromkeys(ROOTS, B)))
    prepared = ledger.applying(token(step=1, attempt=1), updates(dict.fromkeys(ROOTS, C)))
    assert len(prepared) >= 4
    perform_all(prepared[:2])
    ledger.fence("run", 0, 2)
    assert total(perform_all(prepared[2:])) == STALE
    again = ledger.applying(token(step=1, attempt=2), updates(dict.fromkeys(ROOTS, C)))
    assert {reply.applied for reply in perform_all(again[:3])} == {Applied.REPEATED, Applied.FRESH}
    assert total(perform_all(again)).applied is Applied.FRESH
    assert total(perform_all(again)).applied is Applied.REPEATED
    assert total(perform_all(prepared)) == STALE
    assert (
        ledger.apply(token(step=2, attempt=2), updates(dict.fromkeys(ROOTS, A ^ B ^ C))).completed
        == 8
    )
    assert sorted(feed.read(NOW).acked) == ROOTS
    feed.close()


@pytest.mark.usefixtures("small_slices")
def test_other_work_than_that_of_a_half_done_big_step_fails_its_roots(open_redis):
    ledger = open_redis()
    feed = ledger.feed(1)
    ledger.register(1, ROOTS, [A] * 8)
    perform_all(ledger.applying(token(attempt=1), updates(dict.fromkeys(ROOTS, C)))[:2])
    reply = ledger.apply(token(attempt=2), updates(dict.fromkeys(ROOTS, B)))
    assert reply == Reply(applied=Applied.CONFLICTING, failed=8)
    assert len(feed.read(NOW).failed) == 8
    feed.close()
