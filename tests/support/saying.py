"""A Redis that answers every command with one error, over a real socket: for errors that cannot be
provoked on a real server.
"""

from __future__ import annotations

import socketserver
import threading
from contextlib import suppress
from typing import Any, Self

# Commands that the client itself sends when it connects.
_GREETINGS = {"HELLO", "CLIENT", "AUTH", "SELECT", "PING"}


class SayingRedis:
    """Accepts connections on a free port of the loopback interface; a context manager."""

    def __init__(self) -> None:
        # The answer to all commands: a code and a text.
        self.error = "ERR nothing was set"
        said = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(BrokenPipeError, ConnectionResetError):  # the client gave up
                    while command := _command(self.rfile):
                        self.wfile.write(said._answer(command))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.server_address[1]}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, command: list[str]) -> bytes:
        name = command[0].upper()
        if name in _GREETINGS or name == "MULTI":
            return b"+OK\r\n"
        if name == "EXEC":
            return b"-EXECABORT Transaction discarded because of previous errors.\r\n"
        return f"-{self.error}\r\n".encode()


def _command(stream: Any) -> list[str]:
    """Return the next command; empty when the client has hung up."""
    head = stream.readline()
    if not head:
        return []
    parts = []
    for _ in range(int(head[1:])):
        length = int(stream.readline()[1:])
        parts.append(stream.read(length + 2)[:-2].decode("latin-1"))
    return parts
