"""Addresses of Redis, and pools of connections: to one server, to the primary that Sentinels
name, or to the member of a Redis Cluster that serves one hash slot.

    redis://[[user]:password@]host[:6379][/0][?option=…]           one server; rediss:// with TLS,
                                                                   unix:///path for a socket
    redis+sentinel://[[user]:password@]host[:26379][,host…]/service[/0][?option=…]      the primary
                                                                                        of this name
    redis+cluster://[[user]:password@]host[:6379][,host…][?option=…]                    some members
                                                                                        of a cluster

User and password are for Redis; the options ``sentinel_username`` and ``sentinel_password`` are for
the Sentinels. ``rediss+sentinel`` and ``rediss+cluster`` use TLS, to the Sentinels too.

With Sentinels or a cluster, a connection looks up the primary each time it connects, and its users
see one server. In a cluster this is the server of one hash slot: all keys of one client have the
same hash tag. So no other code needs to know of several servers, and pipelines, scripts and
blocking reads work unchanged.
"""

from __future__ import annotations

import enum
import re
import struct
import termios
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import hiredis
import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from tiercel.acker.errors import RedisRefusedError

Command = tuple[Any, ...]
Host = tuple[str, int]

_FORM = re.compile(r"(rediss?)\+(sentinel|cluster)://(.*)", re.DOTALL | re.IGNORECASE)
_AFTER_PLACE = re.compile(r"[/?#]")
_BETWEEN_URLS = re.compile(r",(?=\s*(?:[a-z][a-z0-9+.-]*://|$))", re.IGNORECASE)
# Commands of this size together are copied into one piece: one write takes less time than several.
_ONE_PIECE_BYTES = 64 * 1024
# Larger commands are sent in pieces, each with a timeout of its own.
_PIECE_BYTES = 512 * 1024
# Most seconds between two looks at what a connection has not sent yet.
_LOOK_S = 0.1
_NO_LIMIT = 2**31
_SENTINEL_PORT = 26379
_PORT = 6379
# Options that would change how tiercel reads replies or retries, or that no text can give.
_OWN_OPTIONS = (
    "command_packer",
    "connection_class",
    "credential_provider",
    "decode_responses",
    "encoding",
    "encoding_errors",
    "parser_class",
    "protocol",
    "redis_connect_func",
    "retry",
    "retry_on_error",
)
_SENTINEL_EXAMPLE = "redis+sentinel://:password@host:26379,other:26379/mymaster/0"
_CLUSTER_EXAMPLE = "redis+cluster://:password@host:6379,other:6379"


class Form(enum.Enum):
    """Source of the primary's address."""

    # The URL itself.
    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, kw_only=True)
class RedisAddress:
    """A Redis URL, with the parts that redis-py does not understand taken out."""

    form: Form
    # For redis-py; with Sentinels or a cluster its host is a placeholder for the primary's.
    url: str = field(repr=False)
    # The Sentinels, or the known members of the cluster.
    hosts: tuple[tuple[str, int], ...] = ()
    # The primary's name at the Sentinels.
    service: str = ""
    # User and password for the Sentinels.
    login: tuple[str | None, str | None] = field(default=(None, None), repr=False)

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Parse a URL; raises RedisRefusedError if it is malformed.

        The error never shows a part that may be a password.
        """
        if at_behind_host(url):
            raise RedisRefusedError(
                "the Redis URL has an '@' behind its host; percent-encode the password: '/' is "
                "%2F, '?' is %3F, '#' is %23, '@' is %40"
            )
        found = _FORM.fullmatch(url)
        if found is None:
            return cls(form=Form.SERVER, url=_checked_server(url))
        scheme = found[1].lower()
        form = Form(found[2].lower())
        rest = found[3]
        # Parse the hosts one by one: since Python 3.14, urlsplit refuses a list of hosts if one is
        # in brackets.
        place = _AFTER_PLACE.split(rest, maxsplit=1)[0]
        parts = urlsplit(f"//{rest[len(place) :]}")
        login, at, listed = place.rpartition("@")
        hosts = tuple(_host(form, each) for each in listed.split(","))
        path = [unquote(part) for part in parts.path.split("/")[1:] if part]
        service = path.pop(0) if form is Form.SENTINEL and path else ""
        if (
            (form is Form.SENTINEL) is not bool(service)
            or len(path) > 1
            or (path and not path[0].isdecimal())
        ):
            raise _malformed(form)
        if form is Form.CLUSTER and path not in ([], ["0"]):
            raise RedisRefusedError("a Redis Cluster has database 0 alone; leave it out of the URL")
        options = _options(scheme, parts.query)
        own = (options.pop("sentinel_username", None), options.pop("sentinel_password", None))
        database = path[0] if path else "0"
        # The host is a placeholder: the primary's address may be IPv6, and TLS checks the primary's
        # host name.
        plain = f"{scheme}://{login}{at}found-later/{database}?{urlencode(options)}"
        return cls(form=form, url=plain, hosts=hosts, service=service, login=own)


def _checked_server(url: str) -> str:
    """Return the URL of one server.

    Raises RedisRefusedError for a database or an option that redis-py would misunderstand.
    """
    scheme, _, rest = url.partition("://")
    parts = urlsplit(f"//{rest[len(_AFTER_PLACE.split(rest, maxsplit=1)[0]) :]}")
    _options(scheme.lower(), parts.query)
    is_server = scheme.lower() in ("redis", "rediss")
    if is_server and not re.fullmatch(r"(/[0-9]*)?/?", unquote(parts.path)):
        raise RedisRefusedError(
            "the Redis URL must end with the number of a database, as redis://:password@host:6379/0"
        )
    return url


def _options(scheme: str, query: str) -> dict[str, str]:
    """Return the options of a URL. Raises RedisRefusedError for one that tiercel cannot use."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name in _OWN_OPTIONS:
            raise RedisRefusedError(
                f"the Redis URL has the option {name}, which tiercel sets itself: leave it out"
            )
        if name.startswith("ssl_") and scheme == "redis":
            raise RedisRefusedError(
                f"the Redis URL has the option {name}, but no TLS: begin it with rediss, or leave "
                "the option out"
            )
    return options


def at_behind_host(url: str) -> bool:
    """Return True if an unquoted ``/``, ``?`` or ``#`` in a password ends the host part too early.

    >>> at_behind_host("redis://:p@ss/word@host:6379/0")
    True
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "unix":
        return False
    parts = urlsplit(f"//{rest[len(_AFTER_PLACE.split(rest, maxsplit=1)[0]) :]}")
    names = (name for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return any("@" in part for part in (parts.path, parts.fragment, *names))


def split_urls(text: str) -> list[str]:
    """Split a comma-separated list of URLs; a URL may have several hosts with commas.

    >>> split_urls("redis://a,redis+sentinel://b,c/name, redis://d")
    ['redis://a', 'redis+sentinel://b,c/name', 'redis://d']
    """
    return [url for url in (part.strip() for part in _BETWEEN_URLS.split(text)) if url]


def _host(form: Form, text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host = parts.hostname
        port = parts.port
    except ValueError:
        host = None
        port = None
    if not host or port == 0:
        raise _malformed(form)
    return host, port or (_SENTINEL_PORT if form is Form.SENTINEL else _PORT)


def _malformed(form: Form) -> RedisRefusedError:
    example = _SENTINEL_EXAMPLE if form is Form.SENTINEL else _CLUSTER_EXAMPLE
    return RedisRefusedError(f"malformed Redis URL; it should look like {example}")


class Pool(redis.ConnectionPool):
    """Connections to one server. Thread-safe, and safe to make before a fork."""

    # Host and port, or the socket file, in the URL: errors name it.
    place = ""
    _end: weakref.finalize[..., Pool] | None = None

    def __init__(self, *, max_connections: int | None = None, **options: Any) -> None:
        """``max_connections``: that of the URL; by default there is no limit.

        redis-py's default is 100 from version 8 on, and each bolt task of a process waits for
        tuples on a connection of its own.
        """
        super().__init__(max_connections=max_connections or _NO_LIMIT, **options)

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send the commands in one write; return their replies, including ResponseErrors.

        Connects if necessary. A broken exchange is retried as the pool's options say, so a command
        may take effect more than once. Raises the client's errors.
        """
        replies = self._exchange_once(commands)
        if [reply for reply in replies if isinstance(reply, exceptions.ReadOnlyError)]:
            # The primary became a replica: a new connection may reach the new primary, but this
            # one never will.
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
        # Keep the closed connections, which the pool counts: they reconnect when they are used.
        idle.extend(closed)
        super().disconnect(inuse_connections)

    def reset(self) -> None:
        """Forget all connections, which belong to the parent process after a fork."""
        # Not the base class's own list: taking a connection from that costs a lock, a check of the
        # socket and four records for an observer.
        self._idle: deque[Any] = deque()
        super().reset()
        # A client that was never closed: left to the garbage collector, its sockets would warn if
        # they were finalized before their connections. At exit the system closes them.
        if self._end is not None:
            self._end.detach()
        self._end = weakref.finalize(self, _hang_up, self._idle, self._available_connections)
        self._end.atexit = False

    def _taken(self) -> Any:
        """Return an idle connection, or a new one if there is none."""
        self._checkpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self.make_connection()


def _hang_up(*idle: Iterable[Any]) -> None:
    for connection in chain(*idle):
        connection.disconnect()


def _exchanged(connection: Any, commands: Sequence[Command]) -> list[Any]:
    replies: list[Any] = []
    try:
        packed = _packed(commands)
        connection.send_packed_command(packed)
        if len(packed) > 1:
            _await_sent(connection)
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except exceptions.ResponseError as error:
                replies.append(error)
    except BaseException:
        # Unread replies would be mistaken for replies to the next commands.
        connection.disconnect()
        raise
    return replies


def _packed(commands: Sequence[Command]) -> list[bytes | memoryview]:
    """Pack commands of plain words, numbers and bytes, in one piece unless that is large.

    redis-py's own function takes three times as long: it looks at each word.
    """
    packed = [hiredis.pack_command(command) for command in commands]
    if sum(map(len, packed)) <= _ONE_PIECE_BYTES:
        return [b"".join(packed)]
    return [piece for each in packed for piece in _pieces(each)]


def _pieces(packed: bytes) -> Iterable[bytes | memoryview]:
    if len(packed) <= _PIECE_BYTES:
        return [packed]
    view = memoryview(packed)
    return [view[at : at + _PIECE_BYTES] for at in range(0, len(packed), _PIECE_BYTES)]


def _await_sent(connection: Any) -> None:
    """Wait until the server's host has received nearly all data, for as long as some of it leaves.

    The system takes megabytes at once. Over a slow link they need longer than a reply may take: the
    call would be repeated with the same end.
    """
    patience_s = connection.socket_timeout
    if patience_s is None:
        return
    pause_s = 0.001
    left = _unsent(connection)
    until = time.monotonic() + patience_s
    while left > _PIECE_BYTES:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOOK_S)
        before, left = left, _unsent(connection)
        if left < before:
            until = time.monotonic() + patience_s
        elif time.monotonic() > until:
            raise exceptions.TimeoutError("Timeout writing to socket")


def _unsent(connection: Any) -> int:
    """Return how many bytes the server's host has not received."""
    # redis-py has no call for it.
    reply = ioctl(connection._sock, termios.TIOCOUTQ, bytes(4))  # noqa: SLF001
    unsent: int = struct.unpack("i", reply)[0]
    return unsent


_NOT_FOR_THOSE_ASKED = (
    "db",
    "username",
    "password",
    "credential_provider",
    "retry_on_error",
    "health_check_interval",
)
# Timeout of one host's answer; the next host is asked after it.
_ANSWER_S = 2.0


class Finder:
    """Looks up the primary's address, and remembers the last one.

    Thread-safe; holds no connection.
    """

    def __init__(
        self, hosts: Sequence[Host], ask: Callable[[Host], tuple[Host, Sequence[Host]]]
    ) -> None:
        """``ask`` asks one host for the primary and for other hosts to ask.

        It raises the client's errors.
        """
        self._hosts = list(hosts)
        self._ask = ask
        self._lock = threading.Lock()
        self.newest: Host | None = None

    def find(self) -> Host:
        """Return the primary's address; raises the last host's error if no host knows it."""
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
                # Ask the host that answered first next time; keep the hosts in the URL.
                self._hosts = list(dict.fromkeys([host, *hosts, *others]))
                self.newest = found
            return found
        raise error


class _Following:
    """Mixin for ``redis.Connection`` and ``redis.SSLConnection`` that connects to the primary."""

    _sock: Any
    host: str
    port: int

    def __init__(self, *, finder: Finder, **options: Any) -> None:
        super().__init__(**options)
        self._finder = finder
        self._found = None

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        # Another connection has noticed a failover: do not wait for the old primary.
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
                f"another server is the primary now ({error})"
            ) from error

    def _connect(self) -> Any:
        self._found = self.host, self.port = self._finder.find()  # type: ignore[assignment]
        return super()._connect()  # type: ignore[misc]


class _FollowingConnection(_Following, redis.Connection):
    pass


class _FollowingSSLConnection(_Following, redis.SSLConnection):
    pass


def following_pool(like: Pool, address: RedisAddress, key: str) -> Pool:
    """Make a pool with the options of ``like``, whose connections lead to the primary.

    In a cluster they lead to the primary that serves ``key``.
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
    return Pool(
        connection_class=following,
        max_connections=like.max_connections,
        finder=Finder(address.hosts, ask),
        **options,
    )


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
    # A member may not know its own address: an empty address means the member that was asked.
    return (said[0].decode() if said[0] else asked[0]), int(said[1])


def _answer(kind: type[Any], host: Host, options: dict[str, Any], *command: str) -> Any:
    connection = kind(host=host[0], port=host[1], **options)
    try:
        connection.connect()
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()
