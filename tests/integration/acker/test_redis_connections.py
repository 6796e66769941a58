"""The clients of one process share their connections, which are closed with the last client."""

import gc
import time
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.proxy import Proxy
from tests.support.replicas import WatchedRedis
from tests.support.waiting import wait_until
from tiercel import RedisRefusedError, RedisUnavailableError
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import translated
from tiercel.acker.redis.pool import Pool
from tiercel.acker.redis.scripts import RedisServer


def test_the_last_client_closes_what_all_of_them_shared(redis):
    server = redis()
    # Another timeout means separate connections; this client only observes.
    observer = connect(server.url, socket_timeout=timedelta(seconds=9))

    def connections():
        return len(observer.client_list())

    alone = connections()
    first = connect(server.url)
    second = connect(server.url)
    assert first.ping()
    assert second.ping()
    assert connections() == alone + 1
    first.close()
    assert connections() == alone + 1
    assert second.ping()
    second.close()
    wait_until(lambda: connections() == alone)
    assert second.ping(), "a closed client may go on, with a new connection"
    second.close()
    wait_until(lambda: connections() == alone)
    observer.close()


def test_a_client_that_was_never_closed_has_its_connections_closed_with_its_pool(redis):
    server = redis()
    made = RedisServer(server.url)
    made.command("PING", verb="ask").perform()
    # Held here, so that neither is closed by its own finalizer.
    held = [*made._pool._idle, *made._pool._available_connections]
    assert [each.is_connected for each in held] == [True, True]
    made.cycle = made
    del made
    gc.collect()
    assert [each.is_connected for each in held] == [False, False]


@pytest.mark.embedded
def test_a_wrong_password_of_the_sentinels_is_refused_and_no_connection_to_them_stays_open():
    """tiercel asks the Sentinels itself for both reasons: redis-py's pool says "no primary found",
    and keeps its connections open.
    """
    with WatchedRedis() as watched:
        connected = connect(watched.url)
        assert connected.ping()
        for sentinel in watched.sentinels:
            with closing(connect(sentinel.url)) as observer:
                # Expect the observer's connection and those of the two other Sentinels.
                others = [
                    each
                    for each in observer.client_list()
                    if not each["name"].startswith("sentinel-")
                ]
                assert len(others) == 1
        connected.close()
        wrong = connect(watched.url.replace("sentinel_password=", "sentinel_password=wr0ng"))
        with (
            pytest.raises(
                RedisRefusedError, match="check the user and password in its URL"
            ) as caught,
            translated("look", wrong),
        ):
            wrong.ping()
        assert "wr0ng" not in str(caught.value)
        wrong.close()


SHORT = timedelta(seconds=2)
LARGE = b"x" * 4 * 1024 * 1024


def test_a_call_may_take_longer_than_the_timeout_while_its_data_leave(redis):
    with Proxy(redis().url, rate=1e6) as link:
        client = connect(link.url, socket_timeout=SHORT, retries=0)
        pool = client.connection_pool
        assert isinstance(pool, Pool)
        assert pool.exchange([("SET", "key", LARGE)]) == [b"OK"]
        assert link.accepted == 1
        client.close()


def test_a_call_over_a_link_that_takes_nothing_more_ends_after_the_timeout(redis):
    with Proxy(redis().url, rate=1e6) as link:
        client = connect(link.url, socket_timeout=SHORT, retries=0)
        client.connection_pool.exchange([("PING",)])
        link.rate = 1.0
        began = time.monotonic()
        with (
            pytest.raises(RedisUnavailableError, match="does not answer"),
            translated("write", client),
        ):
            client.connection_pool.exchange([("SET", "key", LARGE)])
        assert time.monotonic() - began < 10
        client.close()
