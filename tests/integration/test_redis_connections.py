"""The clients of one process share their connections, and the last one that is closed closes them."""

from datetime import timedelta

from acker.redis_client import connect
from tests.waiting import wait_until


def test_the_last_client_closes_what_all_of_them_shared(redis):
    server = redis()
    # Other timeouts, other connections: this one only looks.
    observer = connect(server.url, socket_timeout=timedelta(seconds=9))

    def connections():
        return len(observer.client_list())

    alone = connections()
    first, second = connect(server.url), connect(server.url)
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
