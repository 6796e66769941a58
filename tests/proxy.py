"""A TCP proxy that loses replies: the server has done what it was told, and the client cannot know."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class LosingProxy:
    """Passes everything on until ``lose_next``; then it swallows the next reply and breaks that connection."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._to_lose = 0
        self.lost = 0

    @property
    def url(self) -> str:
        credentials, _, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{credentials}@127.0.0.1:{self._listener.getsockname()[1]}"))

    def lose_next(self, replies: int = 1) -> None:
        self._to_lose = replies

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # shutdown wakes the thread in accept; close alone would not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            _hang_up(one)
        for thread in self._threads:
            thread.join(timeout=10)

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._parts.hostname, self._parts.port))
                self._sockets += [client, server]
                self._start(self._pass_on, client, server)
                self._start(self._pass_back, client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        _hang_up(server)

    def _pass_back(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if self._to_lose:
                    self._to_lose -= 1
                    self.lost += 1
                    break
                client.sendall(data)
        _hang_up(client)
        _hang_up(server)


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
