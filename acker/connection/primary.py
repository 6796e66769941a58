"""Connections that look for the primary, each time they connect.

They ask Sentinels, or members of a cluster.

Their users see one server. In a cluster it is the server of one hash slot: all keys of one of our
clients have one hash tag. So no other code has to know that there are several servers, and
pipelines, scripts and blocking reads need no changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from tiercel.acker.connection.address import Form, RedisAddress
from tiercel.acker.connection.pool import Pool

Host = tuple[str, int]
_NOT_FOR_THOSE_ASKED = (
    "db",
    "username",
    "password",
    "credential_provider",
    "retry_on_error",
    "health_check_interval",
)
# Then another one is asked.
_ANSWER_S = 2.0


class Finder:
    """Knows where the primary was last, and finds out where it is.

    Thread-safe; holds no connection.
    """

    def __init__(
        self, hosts: Sequence[Host], ask: Callable[[Host], tuple[Host, Sequence[Host]]]
    ) -> None:
        """``ask`` asks one host for the primary and for others that can be asked.

        It raises the client's errors.
        """
        self._hosts = list(hosts)
        self._ask = ask
        self._lock = threading.Lock()
        self.newest: Host | None = None

    def find(self) -> Host:
        """Return the primary's address. If no server knows it, raises the error of the last one."""
        error: Exception = exceptions.ConnectionError("there is no server to ask for the primary")
        with self._lock:
            hosts = list(self._hosts)
        for host in hosts:
            try:
                found, others = self._ask(host)
            except (exceptions.RedisError, OSError) as problem:
                error = problem
                continue
            with self._lock:
                # The server that answered goes first; servers that the URL names stay.
                self._hosts = list(dict.fromkeys([host, *hosts, *others]))
                self.newest = found
            return found
        raise error


class _Following:
    """Before ``redis.Connection`` or ``redis.SSLConnection`` in the order of classes."""

    _sock: Any
    host: str
    port: int

    def __init__(self, *, finder: Finder, **options: Any) -> None:
        super().__init__(**options)
        self._finder = finder
        self._found = None

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        # Another connection has learned of a failover; this one need not wait for a
        # server that is gone.
        if self._sock and self._found != self._finder.newest:
            self.disconnect()  # type: ignore[attr-defined]
        super().send_packed_command(command, check_health)  # type: ignore[misc]

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except (
            exceptions.ReadOnlyError,
            exceptions.AskError,
        ) as error:  # a MovedError is an AskError
            self.disconnect()  # type: ignore[attr-defined]
            raise exceptions.ConnectionError(
                f"the primary is another server now ({error})"
            ) from error

    def _connect(self) -> Any:
        self._found = self.host, self.port = self._finder.find()  # type: ignore[assignment]
        return super()._connect()  # type: ignore[misc]


class _FollowingConnection(_Following, redis.Connection):
    pass


class _FollowingSSLConnection(_Following, redis.SSLConnection):
    pass


def following_pool(like: Pool, address: RedisAddress, key: str) -> Pool:
    """A pool with the options of ``like``, whose connections lead to the primary.

    In a cluster to that of ``key``.
    """
    kind = like.connection_class
    options = {
        name: value
        for name, value in like.connection_kwargs.items()
        if name not in ("host", "port")
    }
    asking = {name: value for name, value in options.items() if name not in _NOT_FOR_THOSE_ASKED}
    asking.update(socket_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0))
    if address.form is Form.SENTINEL:
        asking["username"], asking["password"] = address.login
        ask = _sentinel(kind, asking, address.service)
    else:
        asking.update((name, options[name]) for name in ("username", "password") if name in options)
        ask = _member(kind, asking, key_slot(key.encode()))
    following = (
        _FollowingSSLConnection if issubclass(kind, redis.SSLConnection) else _FollowingConnection
    )
    return Pool(connection_class=following, finder=Finder(address.hosts, ask), **options)


def _sentinel(
    kind: type[Any], options: dict[str, Any], service: str
) -> Callable[[Host], tuple[Host, Sequence[Host]]]:
    def ask(host: Host) -> tuple[Host, Sequence[Host]]:
        found = _answer(kind, host, options, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        if not found:
            raise exceptions.ConnectionError(
                f"the Sentinel at {host[0]}:{host[1]} knows no {service!r}"
            )
        return (found[0].decode(), int(found[1])), ()

    return ask


def _member(
    kind: type[Any], options: dict[str, Any], slot: int
) -> Callable[[Host], tuple[Host, Sequence[Host]]]:
    def ask(host: Host) -> tuple[Host, Sequence[Host]]:
        ranges = _answer(kind, host, options, "CLUSTER", "SLOTS")
        primaries = {
            (first, last): _member_host(primary, host) for first, last, primary, *_ in ranges
        }
        for (first, last), found in primaries.items():
            if first <= slot <= last:
                return found, list(primaries.values())
        raise exceptions.ClusterDownError(f"no member of the cluster has hash slot {slot}")

    return ask


def _member_host(said: Sequence[Any], asked: Host) -> Host:
    # A member that does not know its own address leaves it out: it is the member that was asked.
    return (said[0].decode() if said[0] else asked[0]), int(said[1])


def _answer(kind: type[Any], host: Host, options: dict[str, Any], *command: str) -> Any:
    connection = kind(host=host[0], port=host[1], **options)
    try:
        connection.connect()
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()
