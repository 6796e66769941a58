"""A TCP proxy that does to connections what networks do: it cuts them, slows them down, lets them
fall silent, and loses replies.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Passes everything on between its own ``url`` and a server's, until told otherwise."""

    def __init__(self, url: str, *, rate: float | None = None) -> None:
        """``rate`` is how many bytes per second each connection passes on in each direction."""
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        if rate is not None:
            # Connections inherit it. More would be sent, as far as the sender knows.
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self.rate = rate
        credentials, _, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(
            parts._replace(netloc=f"{credentials}@127.0.0.1:{self._listener.getsockname()[1]}")
        )
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self._to_lose = 0
        self._to_pass = 0
        # Delay of all data, in both directions.
        self.delay_s = 0.0
        self.lost = 0
        # Number of connections that were made.
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all current connections."""
        for link in self._take_links():
            link.hang_up()

    def mute(self) -> None:
        """Keep all current connections open, but pass nothing on.

        New ones work: the others are half-open.
        """
        for link in self._take_links(keep=True):
            link.muted = True

    def lose_next(self, replies: int = 1, after: int = 0) -> None:
        """Swallow the server's next replies, and cut their connections: the server has executed the
        calls, and the client cannot know. ``after`` replies pass before.
        """
        self._to_pass = after
        self._to_lose = replies

    def retarget(self, url: str, *, cut: bool = True) -> None:
        """Lead new connections to another server, as after a failover.

        The old connections are broken unless ``cut`` is False.
        """
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        if cut:
            self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Break all connections and accept no more."""
        # shutdown wakes the thread in accept; close alone would not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def loses(self) -> bool:
        """Return True if this reply is to be dropped."""
        with self._lock:
            if not self._to_lose:
                return False
            if self._to_pass:
                self._to_pass -= 1
                return False
            self._to_lose -= 1
            self.lost += 1
            return True

    def _take_links(self, *, keep: bool = False) -> list[_Link]:
        with self._lock:
            links = self._links
            self._links = list(links) if keep else []
        return links

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self.accepted += 1
                link = _Link(self, near, far)
                with self._lock:
                    self._links.append(link)
                link.start()


class _Link:
    """One connection with a reader and a writer per direction, so that a delay does not limit the
    rate.
    """

    def __init__(self, proxy: Proxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy = proxy
        self._near = near
        self._far = far
        self.muted = False

    def start(self) -> None:
        for source, sink, replies in (
            (self._near, self._far, False),
            (self._far, self._near, True),
        ):
            waiting: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
            threading.Thread(
                target=self._read, args=(source, waiting, replies), daemon=True
            ).start()
            threading.Thread(target=self._write, args=(sink, waiting), daemon=True).start()

    def hang_up(self) -> None:
        for one in (self._near, self._far):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _read(
        self, source: socket.socket, waiting: SimpleQueue[tuple[float, bytes]], replies: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.muted:
                    continue
                if replies and self._proxy.loses():
                    self.hang_up()
                    break
                if self._proxy.rate is not None:
                    time.sleep(len(data) / self._proxy.rate)
                waiting.put((time.monotonic() + self._proxy.delay_s, data))
        waiting.put((0, b""))

    def _write(self, sink: socket.socket, waiting: SimpleQueue[tuple[float, bytes]]) -> None:
        with suppress(OSError):
            while True:
                due, data = waiting.get()
                if not data:
                    break
                time.sleep(max(0.0, due - time.monotonic()))
                if not self.muted:
                    sink.sendall(data)
        if not self.muted:
            self.hang_up()
