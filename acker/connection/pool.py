"""A pool of connections that also exchanges a batch of commands for its replies, for little CPU.

The client's own pipeline does the same for three times the CPU: at a hundred messages per second
that was a sixth of what a step of a bolt costs (see docs/decisions/short-steps.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from redis import exceptions

Command = Sequence[Any]


class Pool(redis.ConnectionPool):
    """Connections to one server. Thread-safe, and safe to make before a fork."""

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send the commands in one write; return their replies.

        A ResponseError is a reply too.

        Connects where that is needed; a broken exchange is repeated as the pool's options say, so
        each command may take effect more than once. Raises the client's errors.
        """
        replies = self._exchange_once(commands)
        if any(isinstance(reply, exceptions.ReadOnlyError) for reply in replies):
            # The primary became a replica: a new connection may lead to the new primary,
            # this one never will.
            self.disconnect(inuse_connections=False)
            replies = self._exchange_once(commands)
        return replies

    def _exchange_once(self, commands: Sequence[Command]) -> list[Any]:
        connection = self._taken()
        try:
            replies: list[Any] = connection.retry.call_with_retry(
                lambda: _exchanged(connection, commands), lambda _error: connection.disconnect()
            )
        finally:
            self._idle.append(connection)
        return replies

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the connections, except those in an exchange."""
        self._checkpid()
        idle = self._idle
        closed = []
        with suppress(IndexError):
            while True:
                closed.append(idle.pop())
        for connection in closed:
            connection.disconnect()
        # Closed and not thrown away: the pool counts them, and they connect again
        # when they are used.
        idle.extend(closed)
        super().disconnect(inuse_connections)

    def reset(self) -> None:
        """Forget all connections: in a process that was forked they are the parent's."""
        # Beside the base class's own, because taking one from there costs a lock, a look at the
        # socket and four records for an observer.
        self._idle: deque[Any] = deque()
        super().reset()

    def _taken(self) -> Any:
        """Return a connection that nothing else uses, made now if there is none."""
        self._checkpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self.make_connection()


def _exchanged(connection: Any, commands: Sequence[Command]) -> list[Any]:
    replies: list[Any] = []
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except exceptions.ResponseError as error:
                replies.append(error)
    except BaseException:
        # Unread replies would be taken for those to the next commands.
        connection.disconnect()
        raise
    return replies
