"""The contract of presence, on its memory twin and on Redis."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.presences import InRedis
from tiercel import RedisUnavailableError
from tiercel.workers.control.presence import Attendant, Seat
from tiercel.workers.control.redis_control import RedisPresences

# Long, because time passes between two calls in Redis: some seconds on a busy machine.
HERE = Seat("here", timedelta(seconds=1_000))
THERE = Seat("there", timedelta(seconds=1_000))
ANN = Attendant("ann", "says this, and that")
BOB = Attendant("bob", "")


@pytest.fixture
def presences(seats):
    made = seats.presences()
    yield made
    made.close()


def test_one_process_has_a_seat_and_what_it_says_of_itself_is_found(seats, presences):
    assert presences.look([HERE, THERE]) == [None, None]
    assert presences.take(HERE, ANN)
    assert not presences.take(HERE, BOB)
    assert presences.take(THERE, BOB)
    assert presences.look([THERE, HERE]) == [BOB, ANN]
    assert seats.presences().look([HERE]) == [ANN]
    assert presences.look([]) == []


def test_it_says_something_else_by_taking_the_seat_again(presences):
    for note in ("", "one word", "another one", ""):
        assert presences.take(HERE, ANN._replace(note=note))
        assert presences.look([HERE]) == [ANN._replace(note=note)]


def test_a_seat_lapses_unless_it_is_taken_again_in_time(seats, presences):
    assert presences.take(HERE, ANN)
    seats.expire(900)
    assert presences.take(HERE, ANN)
    seats.expire(900)
    assert not presences.take(HERE, BOB)
    seats.expire(100)
    assert presences.look([HERE]) == [None]
    assert presences.take(HERE, BOB)
    assert not presences.take(HERE, ANN)


def test_each_seat_lapses_after_its_own_time(seats, presences):
    brief = Seat("brief", timedelta(seconds=3))
    presences.take(brief, ANN)
    presences.take(HERE, ANN)
    seats.expire(3)
    assert presences.look([brief, HERE]) == [None, ANN]


def test_who_leaves_gives_up_its_own_seat_only(presences):
    presences.leave(HERE, ANN.name)
    presences.take(HERE, BOB)
    presences.leave(HERE, ANN.name)
    assert presences.look([HERE]) == [BOB]
    for _ in range(2):
        presences.leave(HERE, BOB.name)
        assert presences.look([HERE]) == [None]
    assert presences.take(HERE, ANN)


def test_a_seat_that_is_taken_by_force_is_lost_to_the_one_before(presences):
    presences.take(HERE, ANN)
    assert presences.take(HERE, BOB, by_force=True)
    assert presences.look([HERE]) == [BOB]
    assert not presences.take(HERE, ANN)
    presences.leave(HERE, ANN.name)
    assert presences.look([HERE]) == [BOB]


def test_after_a_loss_a_seat_is_the_first_ones_that_comes(seats, presences):
    presences.take(HERE, ANN)
    seats.lose()
    assert presences.look([HERE]) == [None]
    assert presences.take(HERE, BOB)
    assert not presences.take(HERE, ANN)


def test_only_who_has_the_seat_draws_runs_and_each_has_a_higher_number(seats, presences):
    assert presences.draw_run(HERE, ANN.name) is None
    presences.take(HERE, ANN)
    drawn = [presences.draw_run(HERE, ANN.name) for _ in range(20)]
    assert presences.draw_run(HERE, BOB.name) is None
    presences.leave(HERE, ANN.name)
    presences.take(HERE, BOB)
    assert presences.draw_run(HERE, ANN.name) is None
    drawn += [presences.draw_run(HERE, BOB.name) for _ in range(20)]
    assert drawn == sorted(set(drawn))
    seats.expire(1_000)
    assert presences.draw_run(HERE, BOB.name) is None
    assert 0 < drawn[0] < drawn[-1] < 2**53


def test_what_a_stranger_wrote_into_a_seat_is_an_attendant_that_nobody_is(redis_url):
    seats = InRedis(redis_url)
    presences = seats.presences()
    for written, found in {
        b"": Attendant("", ""),
        b"\xff\n1 2": Attendant("\ufffd", "1 2"),
        b"ann": Attendant("ann", ""),
    }.items():
        seats.client.set(presences.key(HERE), written)
        assert presences.look([HERE]) == [found]
        assert not presences.take(HERE, BOB)
        assert presences.take(HERE, BOB, by_force=True)


def test_a_server_out_of_memory_takes_no_process_its_seat(redis):
    seats = InRedis(redis().url)
    presences = seats.presences()
    presences.take(HERE, ANN)
    seats.client.config_set("maxmemory", 1)
    assert presences.take(HERE, ANN)
    assert presences.draw_run(HERE, ANN.name)
    presences.leave(HERE, ANN.name)
    assert presences.take(HERE, BOB)


def test_a_redis_that_is_away_is_an_error_that_passes(redis):
    server = redis()
    presences = RedisPresences(server.url, "presence")
    assert presences.take(HERE, ANN)
    server.kill()
    for call in (
        lambda: presences.take(HERE, ANN),
        lambda: presences.leave(HERE, ANN.name),
        lambda: presences.look([HERE]),
        lambda: presences.draw_run(HERE, ANN.name),
    ):
        with pytest.raises(RedisUnavailableError):
            call()
