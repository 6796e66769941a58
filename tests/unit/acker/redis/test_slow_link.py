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

TIMEOUT = timedelta(seconds=0.4)
VALUE = b"x" * 4 * 1024 * 1024


class SlowServer:
    """Reads four megabytes per second, and replies when it has ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._listener = socket.socket()
        # Inherited by connections. Otherwise the client's data would be in this machine's memory.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        left = self._size
        while left > 0:
            data = connection.recv(64 * 1024)
            if not data:
                return
            left -= len(data) if len(data) > 1_000 else 0
            time.sleep(len(data) / 4e6)
        connection.sendall(b"+OK\r\n")
