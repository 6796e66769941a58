"""Redis with several servers: a primary and a replica under three Sentinels, and a Redis Cluster.
All embedded.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, closing
from typing import Any

import redis

from tests.support.entered import Entered
from tests.support.servers import TroubledRedis
from tests.support.waiting import wait_until
from tiercel.acker.redis.clients import connect
from tiercel.compose.guard import Launch
from tiercel.compose.install import install_missing
from tiercel.compose.server import LOOPBACK, free_port

SERVICE = "tiercel"
_DOWN_AFTER_MS = 1000
_SENTINEL = """\
sentinel monitor {service} {host} {port} 2
sentinel auth-pass {service} {password}
sentinel down-after-milliseconds {service} {down}
sentinel failover-timeout {service} 10000
"""
_SHARD = """\
cluster-enabled yes
cluster-port {bus_port}
cluster-node-timeout 2000
cluster-config-file nodes.conf
"""


class _Member(TroubledRedis):
    """A server with additional configuration, and a shared password."""

    def __init__(self, password: str, *lines: str) -> None:
        super().__init__()
        self._password = password
        self._lines = lines

    @property
    def port(self) -> int:
        return self._port

    @property
    def synced(self) -> bool:
        """Return True if it is a replica that has all of its primary's data."""
        with closing(connect(self.url)) as client:
            return client.info("replication").get("master_link_status") == "up"

    def _configure(self) -> None:
        super()._configure()
        lines = (f"masterauth {self._password}", "repl-diskless-sync-delay 0", *self._lines)
        with (self.folder / "redis.conf").open("a") as config:
            config.write("".join(f"{line}\n" for line in lines))


class _Shard(_Member):
    """A server of a Redis Cluster.

    The cluster bus port is drawn too: Redis' default, 10,000 above the clients' port, is in the
    range of ports that Linux gives to outgoing connections.
    """

    bus_port = 0

    def _configure(self) -> None:
        self.bus_port = free_port()
        self._lines = (_SHARD.format(bus_port=self.bus_port),)
        super()._configure()


class _Sentinel(_Member):
    """A Sentinel, which writes its findings into its configuration."""

    name = "Sentinel"

    def _launch(self) -> Launch:
        launch = super()._launch()
        return Launch(
            argv=[*launch.argv, "--sentinel"],
            env=launch.env,
            cwd=launch.cwd,
            output=launch.output,
            scratch=launch.scratch,
        )

    def _answers(self) -> bool:
        # A Sentinel has no QUIT, after which a server would hang up.
        with closing(
            redis.Redis(
                host=LOOPBACK, port=self._port, protocol=2, password=self._password, retry=None
            )
        ) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError as error:
                raise OSError from error

    def _configure(self) -> None:
        TroubledRedis._configure(self)
        text = (
            f"port {self._port}\nbind {LOOPBACK}\nrequirepass {self._password}\nsentinel "
            f"sentinel-pass {self._password}\n"
        )
        (self.folder / "redis.conf").write_text(text + "".join(self._lines))


class WatchedRedis(Entered):
    """A primary and a replica, watched by three Sentinels; a server for the tests, whose URL names
    the Sentinels.
    """

    def __init__(self) -> None:
        install_missing("redis-server")
        self.password, self._sentinel_password = (
            secrets.token_urlsafe(16),
            secrets.token_urlsafe(16),
        )
        self.servers: list[_Member] = []
        self.sentinels: list[_Sentinel] = []

    def _enter(self, exits: ExitStack) -> None:
        primary = exits.enter_context(_Member(self.password, "min-replicas-max-lag 2"))
        replica = exits.enter_context(
            _Member(self.password, f"replicaof {LOOPBACK} {primary.port}")
        )
        self.servers = [primary, replica]
        wait_until(lambda: replica.synced, 60, "the replica to be in step")
        lines = _SENTINEL.format(
            service=SERVICE,
            host=LOOPBACK,
            port=primary.port,
            password=self.password,
            down=_DOWN_AFTER_MS,
        )
        self.sentinels = [
            exits.enter_context(_Sentinel(self._sentinel_password, lines)) for _ in range(3)
        ]
        wait_until(self._all_known, 60, "the Sentinels to know the replica and each other")

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://:{self.password}@{hosts}/{SERVICE}/0?sentinel_password={self._sentinel_password}"

    @property
    def primary_port(self) -> int:
        """Return the primary's port according to the first running Sentinel."""
        with closing(connect(next(each for each in self.sentinels if each.running).url)) as client:
            return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    @property
    def primary(self) -> _Member:
        port = self.primary_port  # asked once: it may change in between
        return next(server for server in self.servers if server.port == port)

    def _all_known(self) -> bool:
        for sentinel in self.sentinels:
            with closing(connect(sentinel.url)) as client:
                said = _raw(client, "SENTINEL", "MASTER", SERVICE)
            state = dict(zip(said[::2], said[1::2], strict=True))
            if int(state[b"num-slaves"]) < 1 or int(state[b"num-other-sentinels"]) < 2:
                return False
        return True


class ClusteredRedis(Entered):
    """A Redis Cluster of three primaries with a replica each. Its URL names two of the six."""

    def __init__(self) -> None:
        install_missing("redis-server")
        self.password = secrets.token_urlsafe(16)
        self.members: list[_Shard] = []

    def _enter(self, exits: ExitStack) -> None:
        self.members = [exits.enter_context(_Shard(self.password)) for _ in range(6)]
        self._form()

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{member.port}" for member in self.members[:2])
        return f"redis+cluster://:{self.password}@{hosts}"

    def ask(self, member: _Member, *command: str | int) -> Any:
        with closing(connect(member.url)) as client:
            return _raw(client, *command)

    def primary_of(self, key: str) -> _Member:
        """Return the member that has a key's slot now, according to the others."""
        running = next(member for member in self.members if member.running)
        slot = self.ask(running, "CLUSTER", "KEYSLOT", key)
        for first, last, primary, *_ in self.ask(running, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(member for member in self.members if member.port == primary[1])
        raise AssertionError(f"nobody has slot {slot}")

    def _form(self) -> None:
        first, *others = self.members
        for other in others:
            self.ask(first, "CLUSTER", "MEET", LOOPBACK, other.port, other.bus_port)
        for number, (start, end) in enumerate(((0, 5460), (5461, 10922), (10923, 16383))):
            self.ask(self.members[number], "CLUSTER", "ADDSLOTSRANGE", start, end)
        wait_until(
            lambda: all(self._sees(member, "cluster_known_nodes:6") for member in self.members),
            60,
            "to have met",
        )
        ids = [self.ask(member, "CLUSTER", "MYID").decode() for member in self.members[:3]]
        for member, identity in zip(self.members[3:], ids, strict=True):
            wait_until(lambda m=member, i=identity: self._follows(m, i), 60, "a replica")
        wait_until(
            lambda: all(member.synced for member in self.members[3:]),
            60,
            "the replicas to be in step",
        )
        wait_until(
            lambda: all(self._sees(member, "cluster_state:ok") for member in self.members),
            60,
            "the cluster",
        )

    def _follows(self, member: _Member, identity: str) -> bool:
        try:
            self.ask(member, "CLUSTER", "REPLICATE", identity)
        except redis.ResponseError:
            return False  # the member does not know that one yet
        return True

    def _sees(self, member: _Member, line: str) -> bool:
        return line in self.ask(member, "CLUSTER", "INFO").decode()


def _raw(client: redis.Redis, *command: str | int) -> Any:
    """Return the server's raw reply, without the client's conversion."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        client.connection_pool.release(connection)
