"""The contract of the case book, run over both backends."""

import uuid
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.case_book import MemoryCaseBook
from tiercel import RedisUnavailableError
from tiercel.acker.ledger import Token
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.suspects.book import DEATHS, Case, Suspect
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook

SOME = Suspect(component="split", task=3, seed=2**64 - 1, roots=(7, 2**63))
FLUSH = Suspect(component="split", task=3, seed=None, deaths=1)


@pytest.fixture(params=["memory", "redis"])
def book(request):
    if request.param == "memory":
        made = MemoryCaseBook()
    else:
        made = RedisCaseBook(
            connect(request.getfixturevalue("redis_url")), f"suspects-{uuid.uuid4().hex}"
        )
    yield made
    made.close()


def token(step=1, task=0, run="run"):
    return Token(run=run, task=task, step=step)


def test_what_was_noted_outlives_a_call_of_days(redis_url):
    with closing(connect(redis_url)) as client:
        book = RedisCaseBook(client, f"suspects-{uuid.uuid4().hex}")
        book.begin(token(), Case(suspects=(SOME,)))
        book.note(token(), SOME)
        left_ms = client.pttl(book._key)
        assert timedelta(days=7) < timedelta(milliseconds=left_ms) <= timedelta(days=30)


def test_what_was_noted_last_is_found(book):
    assert book.load(token()) == Case()
    book.begin(token(), Case(suspects=(FLUSH,)))
    book.note(token(), FLUSH)
    book.note(token(), SOME)
    assert book.load(token()) == Case(doing=SOME, suspects=(FLUSH,))
    book.note(token(), None)
    assert book.load(token()) == Case(suspects=(FLUSH,))
    book.begin(token(), Case(doing=SOME))
    assert book.load(token()) == Case(doing=SOME)


def test_an_attempt_that_begins_does_nothing_yet(book):
    book.note(token(), SOME)
    book.begin(token(), Case(suspects=(SOME,)))
    assert book.load(token()) == Case(suspects=(SOME,))


def test_tasks_have_cases_of_their_own(book):
    book.note(token(task=1), SOME)
    book.note(token(task=10), FLUSH)
    assert book.load(token(task=1)) == Case(doing=SOME)
    assert book.load(token(task=10)) == Case(doing=FLUSH)


def test_what_was_proved_at_one_task_all_tasks_of_the_run_know(book):
    book.begin(token(task=1), Case(suspects=(replace(SOME, deaths=DEATHS), FLUSH)))
    book.begin(token(task=2), Case(suspects=(replace(SOME, roots=(8,), deaths=1),)))
    book.note(token(task=3), replace(SOME, roots=(9,)))
    assert book.guilty(token(task=10)) == {7, 2**63}
    assert book.guilty(token(run="other")) == frozenset()


@pytest.mark.parametrize("later", [token(step=2), token(run="other")])
def test_what_is_over_is_forgotten(book, later):
    book.note(token(), SOME)
    book.note(later, FLUSH)
    assert book.load(later) == Case(doing=FLUSH)
    assert book.cases() == [Case(doing=FLUSH)]


def test_a_driver_takes_out_all_cases(book):
    book.note(token(), SOME)
    book.begin(token(task=1), Case(suspects=(SOME,)))
    for _ in range(2):
        found = book.cases()
        assert len(found) == 2
        assert Case(doing=SOME) in found
        assert Case(suspects=(SOME,)) in found
    for _ in range(2):
        book.forget()
        assert book.cases() == []


def test_processes_that_begin_after_the_same_step_are_counted(book):
    mine = token(task=1)
    assert book.begun(mine, 0) == 0
    for step, count in ((0, 1), (0, 2), (7, 1), (7, 2), (9, 1)):
        book.begins(mine, step)
        assert book.begun(mine, step) == count
    assert [book.begun(one, 9) for one in (token(task=2), token(task=1, run="other"))] == [0, 0]
    book.note(mine, SOME)
    assert book.load(mine) == Case(doing=SOME)
    assert book.cases() == [Case(doing=SOME)]
    assert book.guilty(mine) == frozenset()
    book.forget()
    assert book.begun(mine, 9) == 0


def test_nothing_to_blame_can_be_noted_on_a_server_out_of_memory(redis):
    server = redis()
    book = RedisCaseBook(connect(server.url), "full")
    client = connect(server.url)
    book.note(token(), SOME)
    client.config_set("maxmemory", 1)
    with pytest.raises(RedisUnavailableError, match="maxmemory"):
        book.note(token(), FLUSH)
    book.note(token(), None)
    assert book.load(token()) == Case()
    client.close()
    book.close()
