"""Makes all clients of Redis, and checks servers."""

from __future__ import annotations

import logging
import math
import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import redis
from redis import exceptions
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from tiercel.acker.errors import RedisRefusedError, RedisVersionError
from tiercel.acker.layout import shard_prefix, topology_prefix
from tiercel.acker.redis.errors import shown, translated
from tiercel.acker.redis.pool import Form, Pool, RedisAddress, following_pool

log = logging.getLogger(__name__)

# The first version with listpacks and SET … NX GET; Valkey reports a compatible Redis version.
OLDEST = (7, 0)
_CONNECT_TIMEOUT_S = 2.0
_RETRIES = 2
# All pools of this process; each lives as long as a client uses it.
_pools: WeakValueDictionary[tuple[str, str, timedelta, int], Pool] = WeakValueDictionary()
# The open clients of each pool.
_users: WeakKeyDictionary[redis.ConnectionPool, WeakSet[redis.Redis]] = WeakKeyDictionary()
_pools_lock = threading.Lock()


class _Redis(redis.Redis):
    """A client that closes the idle connections of its pool if it is the pool's last user.

    redis-py's ``close`` leaves a pool that was passed in open, and the garbage collector warns
    about sockets that were never closed.
    """

    def close(self) -> None:
        super().close()
        users = _users.get(self.connection_pool)
        if users is not None:
            users.discard(self)
            if not users:
                # Keep connections in use: another thread may wait for a reply. A client that is
                # made in the meantime reconnects.
                self.connection_pool.disconnect(inuse_connections=False)


def connect(
    url: str,
    key: str = "",
    *,
    socket_timeout: timedelta = timedelta(seconds=5),
    retries: int = _RETRIES,
) -> redis.Redis:
    """Make a client that returns bytes, and connects on its first call.

    Thread-safe, and safe to make before a fork.

    The forms of ``url`` are in ``acker.redis.pool``. In a cluster the client is for ``key`` and all
    keys with the same hash tag; an empty ``key`` raises ValueError. With Sentinels or a cluster the
    client follows the primary when that changes.

    The clients of one process share their connections to a server. So a broken connection costs a
    process one timeout, not one each for the ledger, the inboxes and the counters.

    No call hangs: connecting and waiting for a reply have timeouts, and are retried twice, or
    ``retries`` times. So a call may take effect more than once before it returns a reply; the
    caller must tolerate that.
    ``rediss://`` uses TLS, and the certificate must be valid for the host; ``?ssl_ca_certs=path``
    adds certificate authorities. Raises RedisRefusedError for a malformed URL, an unknown option in
    it, or a file that cannot be read.
    """
    address = RedisAddress.parse(url)
    if address.form is not Form.CLUSTER:
        key = ""
    elif not key:
        raise ValueError("a client of a Redis Cluster is for one hash tag: give a key")
    with _pools_lock:
        kind = (url, key, socket_timeout, retries)
        pool = _pools.get(kind)
        if pool is None:
            pool = _pools[kind] = _pool(address, key, socket_timeout, retries)
            pool.place = place_of(url)
        client = _Redis(connection_pool=pool)
        _users.setdefault(pool, WeakSet()).add(client)
        return client


def connect_topology(url: str, topology: str) -> redis.Redis:
    """Make a client, as ``connect``, for the keys of a topology that belong to no shard."""
    return connect(url, topology_prefix(topology))


def _pool(address: RedisAddress, key: str, socket_timeout: timedelta, retries: int) -> Pool:
    try:
        pool = Pool.from_url(
            address.url,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            socket_timeout=socket_timeout.total_seconds(),
            **_of_tcp(address),
            # replies differ by protocol, and the default by version of redis-py
            protocol=2,
            health_check_interval=30,
            retry=Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.02), retries),
            # The primary became a replica: a new connection may reach the new primary, but this
            # one never will.
            retry_on_error=[exceptions.ReadOnlyError],
        )
    except ValueError:
        # Drop the cause, which may quote a part of the password.
        raise RedisRefusedError(
            "malformed Redis URL; it should look like redis://:password@host:6379/0"
        ) from None
    _check_options(pool)
    return pool if address.form is Form.SERVER else following_pool(pool, address, key)


def _of_tcp(address: RedisAddress) -> dict[str, Any]:
    """Return the options of connections over TCP; those to a socket file know none."""
    if address.url.startswith("unix:"):
        return {}
    return {"socket_keepalive": True}


def _check_options(pool: redis.ConnectionPool) -> None:
    """Check the options now: redis-py would check them only when it connects, and report an
    unreachable server.
    """
    options = pool.connection_kwargs
    try:
        pool.connection_class(**options)
    except (TypeError, exceptions.RedisError) as error:
        raise RedisRefusedError(f"an option in the Redis URL is wrong: {shown(error)}") from None
    files = {name: options.get(name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")}
    if not any(files.values()):
        return
    try:
        context = ssl.create_default_context(cafile=files["ssl_ca_certs"])
        if files["ssl_certfile"]:
            context.load_cert_chain(
                files["ssl_certfile"], files["ssl_keyfile"], options.get("ssl_password")
            )
    except OSError as error:  # the base of SSLError, for a malformed file
        named = " or ".join(f"{name}={path}" for name, path in files.items() if path)
        raise RedisRefusedError(f"cannot read {named} of the Redis URL: {error}") from error


def check_version(client: redis.Redis) -> None:
    """Raise RedisVersionError if the server is too old, RedisRefusedError if it is a Sentinel.

    A server that refuses the query passes unchecked.
    """
    try:
        info = client.info("server")
    except exceptions.NoPermissionError:
        return
    if info.get("redis_mode") == "sentinel":
        raise RedisRefusedError(
            "this Redis is a Sentinel: write its URL as redis+sentinel://host:26379/mymaster/0"
        )
    version = str(info["redis_version"])
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise RedisVersionError(
            f"Redis {version} is too old: use Redis {OLDEST[0]}.{OLDEST[1]} or newer, or Valkey"
        )


def check_eviction(
    urls: Sequence[str], topology: str, shards: int, stateful: Sequence[str]
) -> None:
    """Check that the servers of a topology do not evict keys when their memory is full: messages
    would be processed again, and states would lose entries.

    Logs a warning for a server that does, or raises RedisRefusedError if there are ``stateful``
    components. A server that refuses the query passes. Also raises RedisUnavailableError.
    """
    for line in evictions(urls, topology, shards, stateful):
        if stateful:
            raise RedisRefusedError(line)
        log.warning("%s", line, extra={"event": "redis_evicts"})


def evictions(
    urls: Sequence[str], topology: str, shards: int, stateful: Sequence[str]
) -> list[str]:
    """Return one line per server of a topology that evicts keys, with advice.

    A server that refuses the query has none. Raises RedisUnavailableError.
    """
    found = []
    for shard in range(shards):
        url = urls[shard % len(urls)]
        with (
            connect(url, shard_prefix(topology, shard)) as client,
            translated("ask Redis for its maxmemory-policy", client),
        ):
            policy = _evicting(client)
        lost = f", and with them the state of {', '.join(stateful)};"
        if policy is not None:
            found.append(
                f"Redis at {place_of(url)} drops keys when its memory is full "
                f"(maxmemory-policy {policy})"
                f"{lost if stateful else ': messages would be processed again;'} set "
                "maxmemory-policy noeviction"
            )
    return list(dict.fromkeys(found))


def place_of(url: str) -> str:
    """Return host and port of a Redis URL, without its user and password; or its socket file."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path


def is_full(client: redis.Redis) -> bool:
    """Return True if the server refuses writes that need memory; False if it refuses the query.

    Raises RedisUnavailableError.
    """
    with translated("ask Redis for its memory", client):
        try:
            info = client.info("memory")
        except exceptions.NoPermissionError:
            return False
    most = info.get("maxmemory") or 0
    return 0 < most <= info["used_memory"] and info.get("maxmemory_policy") == "noeviction"


def _evicting(client: redis.Redis) -> str | None:
    """Return the server's eviction policy; None if it evicts no keys or refuses the query."""
    try:
        # Managed servers refuse CONFIG GET more often than INFO.
        info = client.info("memory")
    except exceptions.NoPermissionError:
        return None
    policy = str(info.get("maxmemory_policy", "noeviction"))
    return None if policy == "noeviction" or info.get("maxmemory") == 0 else policy


# The commands that the processes of a topology call, directly or in scripts, each as a whole call:
# Redis 7.0 may crash when it is asked about a call that lacks arguments. EVAL and EVALSHA are
# shown by the script that asks.
_CALLS = """
    BLPOP KEY 0, DEL KEY, EXISTS KEY, GET KEY, GETEX KEY, HDEL KEY f, HEXISTS KEY f, HGET KEY f,
    HGETALL KEY, HINCRBY KEY f 1, HKEYS KEY, HLEN KEY, HMGET KEY f, HRANDFIELD KEY, HSCAN KEY 0,
    HSET KEY f v, HSETNX KEY f v, INCR KEY, LPUSH KEY v, LRANGE KEY 0 1, LTRIM KEY 0 1, MGET KEY,
    PEXPIRE KEY 1, PING, RENAME KEY KEY, RPUSH KEY v, SADD KEY v, SET KEY v, SMEMBERS KEY,
    SREM KEY v, TIME, UNLINK KEY, XADD KEY * f v, XDEL KEY 1-1, XLEN KEY, XRANGE KEY - +,
    XREAD STREAMS KEY 0, XTRIM KEY MAXLEN 0, ZADD KEY 1 m, ZPOPMIN KEY, ZRANGE KEY 0 1
"""
CALLS = tuple(call.strip() for call in _CALLS.split(","))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerView:
    """A server as it presents itself; a figure that it refuses to tell is None."""

    # Empty: it refuses to tell.
    version: str
    is_replica: bool
    # False: a restart loses all data.
    persists: bool | None
    # Seconds by which its clock is ahead of this machine's, as far as that is certain.
    ahead_s: float


def look_at_server(client: redis.Redis) -> ServerView:
    """Return what a server says about itself. Raises RedisRefusedError, RedisUnavailableError,
    RedisVersionError.
    """
    with translated("look at Redis", client):
        client.ping()
        check_version(client)
        info = _told(client.info) or {}
        # A managed server may know no CONFIG.
        save: dict[str, str] | None = _told(lambda: client.config_get("save"))
        before = time.time()
        seconds, microseconds = client.time()
        after = time.time()
    ahead_s = seconds + microseconds / 1e6 - (before + after) / 2
    doubt_s = (after - before) / 2
    rewrites = bool(info.get("aof_enabled"))
    return ServerView(
        version=str(info.get("valkey_version") or info.get("redis_version") or ""),
        is_replica=info.get("role") == "slave",
        persists=rewrites or (None if save is None else any(save.values())),
        ahead_s=0.0 if abs(ahead_s) <= doubt_s else ahead_s - math.copysign(doubt_s, ahead_s),
    )


def forbidden_commands(url: str, key: str) -> list[str]:
    """Return the commands of ``CALLS`` that the user may not call on ``key``, which need not exist.

    Raises RedisRefusedError if it may not run scripts, or not on this key; RedisUnavailableError.
    """
    source = resources.files("tiercel.acker.redis").joinpath("lua/forbidden.lua")
    with connect(url, key) as client, translated(f"use the key {key}", client):
        found: Any = client.eval(source.read_text("utf-8"), 1, key, *CALLS)
    return [name.decode() for name in found]


def _told(query: Callable[[], Any]) -> Any:
    """Return the answer; None if the server refuses it."""
    try:
        return query()
    except exceptions.ResponseError:
        return None
