"""The cache of dead letters reads the queue again only if its letters have changed."""

import pytest

from tiercel.queues.errors import BrokerUnavailableError
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.workers.monitoring.watcher import PAUSE_S, SHOWN, DeadLetterCache


def letter(number):
    return DeadLetter(
        id=str(number),
        queue="q",
        reason="bad",
        died=None,
        size=1,
        preview="x",
        body=b"x",
        headers={},
    )


class Broker:
    def __init__(self):
        self.letters = []
        self.looks = 0
        self.away = False

    def show(self, queue, limit):
        self.looks += 1
        if self.away:
            raise BrokerUnavailableError("nothing listens at amqp://u:secret@host")
        return self.letters[:limit]


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def now():
    return [1000.0]


@pytest.fixture
def cache(broker, now):
    return DeadLetterCache("", broker.show, lambda: now[0])


def ids(listing):
    return [each.id for each in listing.letters]


def test_an_empty_queue_is_not_looked_at(cache, broker):
    assert ids(cache.listed("q", 0)) == []
    assert ids(cache.listed("q", None)) == []
    assert broker.looks == 0


def test_many_pages_look_once_and_again_when_the_number_changes(cache, broker, now):
    broker.letters = [letter(1)]
    for _ in range(5):
        now[0] += 2 * PAUSE_S
        assert ids(cache.listed("q", 1)) == ["1"]
    assert broker.looks == 1
    broker.letters = [letter(1), letter(2)]
    assert ids(cache.listed("q", 2)) == ["1", "2"]
    now[0] += PAUSE_S
    broker.letters = []
    assert ids(cache.listed("q", 0)) == []
    assert broker.looks == 3


def test_it_pauses_between_looks(cache, broker):
    for number in range(1, 6):
        broker.letters = [letter(each) for each in range(number)]
        cache.listed("q", number)
    assert broker.looks == 1


def test_more_behind_the_oldest_are_no_reason_to_look(cache, broker, now):
    broker.letters = [letter(number) for number in range(SHOWN + 10)]
    for depth in (SHOWN, SHOWN + 10, SHOWN + 20):
        now[0] += PAUSE_S
        assert len(cache.listed("q", depth).letters) == SHOWN
    assert broker.looks == 1
    now[0] += PAUSE_S
    cache.listed("q", SHOWN)
    assert broker.looks == 2, "fewer: others are the oldest now"


def test_a_broker_that_is_away_is_said_and_asked_again(cache, broker, now):
    broker.away = True
    broker.letters = [letter(1)]
    listing = cache.listed("q", 1)
    assert (ids(listing), "secret" in listing.problem) == ([], False)
    broker.away = False
    assert cache.listed("q", 1).problem == listing.problem, "not at once"
    now[0] += PAUSE_S
    assert ids(cache.listed("q", 1)) == ["1"]


def test_a_look_that_is_asked_for_is_what_all_see(cache, broker):
    broker.letters = [letter(1)]
    assert [each.id for each in cache.look("q")] == ["1"]
    assert ids(cache.listed("q", 1)) == ["1"]
    assert broker.looks == 1
