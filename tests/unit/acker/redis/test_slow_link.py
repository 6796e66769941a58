"""A call over a slow link takes as long as it makes progress, and a dead connection is noticed."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from datetime import timedelta

import pytest

from tiercel import RedisUnavailableError
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import translated
from tiercel.acker.redis.pool import Pool

TIMEOUT = timedelta(seconds=1)
VALUE = b"x" * 4 * 1024 * 1024


class SlowServer:
    """Reads two megabytes per second, and replies to the value."""

    def __init__(self, until: int | None = None) -> None:
        """Reads no more after ``until`` bytes, as if the link was dead."""
        self._until = until
        self._listener = socket.socket()
        # Inherited by connections. Otherwise the client's data would be in this machine's memory.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._dead = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._dead.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        came = 0
        while came < len(VALUE):
            data = connection.recv(64 * 1024)
            if not data:
                return
            if not came and VALUE[:100] not in data:
                # The client introduces itself, one word of a command per line.
                connection.sendall(b"+OK\r\n" * data.count(b"*"))
                continue
            came += len(data)
            if self._until is not None and came > self._until:
                self._dead.wait(10)
                return
            time.sleep(len(data) / 2e6)
        connection.sendall(b"+OK\r\n")


def test_a_call_may_take_longer_than_the_timeout_while_its_data_leave():
    with closing(SlowServer()) as server:
        client = connect(server.url, socket_timeout=TIMEOUT, retries=0)
        pool = client.connection_pool
        assert isinstance(pool, Pool)
        assert pool.exchange([("SET", "key", VALUE)]) == [b"OK"]
        client.close()


def test_a_call_over_a_dead_link_ends_after_the_timeout():
    with closing(SlowServer(until=0)) as server:
        client = connect(server.url, socket_timeout=TIMEOUT, retries=0)
        began = time.monotonic()
        with pytest.raises(RedisUnavailableError, match="does not answer"), translated("write"):
            client.connection_pool.exchange([("SET", "key", VALUE)])
        assert time.monotonic() - began < 10
        client.close()
