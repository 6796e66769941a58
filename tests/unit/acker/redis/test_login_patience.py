"""A process that has connected before waits when Redis refuses its login, but not for ever."""

import pytest
from redis import exceptions

from tests.support.clock import Clock
from tiercel.acker.errors import RedisLoginError, RedisRefusedError
from tiercel.acker.redis import errors
from tiercel.acker.redis.errors import PATIENCE_S, LoginPatience, translated


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def patience(clock, monkeypatch):
    patience = LoginPatience(clock)
    monkeypatch.setattr(errors, "LOGINS", patience)
    return patience


def refuse():
    with translated("take tuples", "redis:6379"):
        raise exceptions.AuthenticationError("WRONGPASS invalid username-password pair")


def test_at_the_start_a_refused_login_is_an_error_at_once(patience):
    with pytest.raises(RedisRefusedError):
        refuse()


def test_later_it_is_waited_for_ten_minutes(patience, clock):
    patience.begin()
    began = clock.now
    while clock.now < began + PATIENCE_S:
        with pytest.raises(RedisLoginError, match="accepted before, so this is retried for 10 min"):
            refuse()
        clock.now += 2.0
    with pytest.raises(RedisRefusedError):
        refuse()


def test_another_outage_has_its_own_ten_minutes(patience, clock):
    patience.begin()
    for _ in range(3):
        with pytest.raises(RedisLoginError):
            refuse()
        clock.now += PATIENCE_S
