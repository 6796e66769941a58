"""A process that has connected before waits when Redis refuses its login or has a certificate that
is not trusted, but not for ever.
"""

import ssl

import pytest
from redis import exceptions

from tests.support.clock import Clock
from tiercel.acker.errors import RedisPassingRefusalError, RedisRefusedError
from tiercel.acker.redis import errors
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import PATIENCE_S, RefusalPatience, translated


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def patience(clock, monkeypatch):
    patience = RefusalPatience(clock)
    monkeypatch.setattr(errors, "REFUSALS", patience)
    return patience


def refuse_login():
    raise exceptions.AuthenticationError("WRONGPASS invalid username-password pair")


def show_another_certificate():
    try:
        raise ssl.SSLCertVerificationError(1, "certificate has expired")
    except ssl.SSLError:
        raise exceptions.ConnectionError("Error 1 connecting") from None


@pytest.fixture(params=[refuse_login, show_another_certificate])
def refuse(request):
    def refuse():
        with translated("take tuples", connect("redis://redis:6379")):
            request.param()

    return refuse


def test_at_the_start_a_refused_login_is_an_error_at_once(patience, refuse):
    with pytest.raises(RedisRefusedError):
        refuse()


def test_later_it_is_waited_for_ten_minutes(patience, clock, refuse):
    patience.begin()
    began = clock.now
    while clock.now < began + PATIENCE_S:
        with pytest.raises(
            RedisPassingRefusalError, match="accepted before, so this is retried for 10 min"
        ):
            refuse()
        clock.now += 2.0
    with pytest.raises(RedisRefusedError):
        refuse()


def test_another_outage_has_its_own_ten_minutes(patience, clock, refuse):
    patience.begin()
    for _ in range(3):
        with pytest.raises(RedisPassingRefusalError):
            refuse()
        clock.now += PATIENCE_S
