"""The embedded servers of local runs, the demo and the tests: a private RabbitMQ, and Redis or
Valkey, each on loopback only, and both together.

RabbitMQ runs by its own script, not Debian's wrapper, which insists on the user ``rabbitmq`` and on
/var. Erlang's port mapper epmd would be a daemon that outlives this process and is shared with
others: the node gets its distribution port by configuration instead, and starts no epmd.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Self

from tiercel.compose.guard import Launch
from tiercel.compose.install import (
    PLAIN_ENVIRONMENT,
    find_rabbitmq,
    find_redis,
    install_missing,
    require,
)
from tiercel.compose.server import LOOPBACK, EmbeddedServer, free_port

_USER = "tiercel"
NODE = f"{_USER}@localhost"
_RABBITMQ_CONF = """\
listeners.tcp.1 = {host}:{port}
default_user = {user}
default_pass = {password}
disk_free_limit.absolute = 50MB
log.console = true
log.console.level = info
log.file = false
collect_statistics_interval = 1000
management.tcp.ip = {host}
management.tcp.port = {management_port}
"""
# Idle schedulers must not spin, as Spark needs the cores. Quorum queues report their depths once
# per second.
_ERL_ARGS = """
    -sname {node} -start_epmd false -erl_epmd_port {dist_port}
    -kernel inet_dist_use_interface {{127,0,0,1}}
    -kernel inet_dist_listen_min {dist_port} -kernel inet_dist_listen_max {dist_port}
    -rabbit quorum_tick_interval 1000
    +sbwt none +sbwtdcpu none +sbwtdio none
"""
_AMQP_GREETING = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME = b"\x01"


class EmbeddedRabbitMQ(EmbeddedServer):
    """A broker whose data survives ``stop`` and ``kill``."""

    name = "RabbitMQ"

    def __init__(self, kept: Path | None = None) -> None:
        super().__init__(kept)
        self._program = require("rabbitmq-server", find_rabbitmq)
        self._port = self._management_port = self._dist_port = 0

    @property
    def url(self) -> str:
        """Address with its password: never log it."""
        return f"amqp://{_USER}:{self._password}@{LOOPBACK}:{self._port}/%2F"

    @property
    def management_url(self) -> str:
        """Address of the HTTP API with its password: never log it."""
        return f"http://{_USER}:{self._password}@{LOOPBACK}:{self._management_port}"

    @property
    def _ports(self) -> Collection[int]:
        return (self._port, self._management_port, self._dist_port)

    def _configure(self) -> None:
        self._port, self._management_port, self._dist_port = free_port(), free_port(), free_port()
        text = _RABBITMQ_CONF.format(
            host=LOOPBACK,
            port=self._port,
            user=_USER,
            password=self._password,
            management_port=self._management_port,
        )
        (self.folder / "rabbitmq.conf").write_text(text)
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        self._draw_cookie()

    def _draw_cookie(self) -> None:
        """Write the Erlang cookie, which controls the broker; Erlang's own is predictable."""
        path = self.folder / ".erlang.cookie"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
            file.write(secrets.token_hex(32))

    def _launch(self) -> Launch:
        settings = {
            "HOME": str(self.folder),  # the Erlang cookie is there
            # makes the script exec the broker without a shell
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(
                _ERL_ARGS.format(node=NODE, dist_port=self._dist_port).split()
            ),
        }
        return Launch(
            argv=[str(self._program)],
            env={**PLAIN_ENVIRONMENT, **settings},
            cwd=self.folder,
            output=self.log,
            scratch=self.scratch,
        )

    def _answers(self) -> bool:
        greeted = answers_as_rabbitmq(self._port)
        socket.create_connection((LOOPBACK, self._management_port), timeout=5).close()
        return greeted

    def _wipe(self) -> None:
        shutil.rmtree(self.folder / "data", ignore_errors=True)


def answers_as_rabbitmq(port: int) -> bool:
    """Return True if a broker serves clients on this loopback port.

    The listener opens last, after the default user and the plugins are set up. Raises OSError if no
    process listens.
    """
    with socket.create_connection((LOOPBACK, port), timeout=5) as connection:
        connection.sendall(_AMQP_GREETING)
        return connection.recv(1) == _METHOD_FRAME


_REDIS_CONF = """\
port {port}
bind {host}
requirepass {password}
dir {folder}
daemonize no
logfile ""
save ""
appendonly {logged}
shutdown-on-sigterm save force
maxmemory-policy noeviction
"""


class EmbeddedRedis(EmbeddedServer):
    """A server that loses its data if it is killed, and keeps it over ``stop`` and ``start``.

    With a ``kept`` folder, a kill loses only the last second.
    """

    name = "Redis"

    def __init__(self, kept: Path | None = None, note: Path | None = None) -> None:
        """``note`` is a file with its password, which is removed when this process dies."""
        super().__init__(kept)
        self._note = note
        self._program = require("redis-server", find_redis)
        self._port = 0

    @property
    def url(self) -> str:
        """Address with its password: never log it."""
        return f"redis://:{self._password}@{LOOPBACK}:{self._port}/0"

    @property
    def _dump(self) -> Path:
        return self.folder / "dump.rdb"

    def wait_until_ready(self, stopped: threading.Event | None = None) -> None:
        super().wait_until_ready(stopped)
        # The dump is loaded by now; if left, it would bring back old data after a later crash.
        self._dump.unlink(missing_ok=True)

    @property
    def _ports(self) -> Collection[int]:
        return (self._port,)

    def _configure(self) -> None:
        self._port = free_port()
        text = _REDIS_CONF.format(
            port=self._port,
            host=LOOPBACK,
            password=self._password,
            folder=self.folder,
            logged="no" if self._kept is None else "yes",
        )
        (self.folder / "redis.conf").write_text(text)

    def _launch(self) -> Launch:
        return Launch(
            argv=[str(self._program), str(self.folder / "redis.conf")],
            env=PLAIN_ENVIRONMENT,
            cwd=self.folder,
            output=self.log,
            scratch=self.scratch,
            note=self._note,
        )

    def _answers(self) -> bool:
        return answers_as_redis(self._port, self._password)

    def _wipe(self) -> None:
        self._dump.unlink(missing_ok=True)
        # The append-only log, of version 7 and later and of earlier versions.
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        (self.folder / "appendonly.aof").unlink(missing_ok=True)


def answers_as_redis(port: int, password: str) -> bool:
    """Return True if a server serves clients on this loopback port.

    Raises OSError if no process listens.
    """
    with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
        connection.sendall(f"AUTH {password}\r\nPING\r\nQUIT\r\n".encode())
        return b"+PONG" in _read_all(connection)


def _read_all(connection: socket.socket) -> bytes:
    received = b""
    while part := connection.recv(1024):
        received += part
    return received


class EmbeddedServices:
    """A private RabbitMQ and a private Redis, for the ``with`` block or the life of this process.

    Missing programs are installed with apt if possible. Raises ServiceMissingError,
    ServiceStartError.
    """

    def __init__(
        self,
        kept: Path | None = None,
        stopped: threading.Event | None = None,
        note: Path | None = None,
    ) -> None:
        """``kept`` is a folder that keeps the data of both for a later start.

        ``stopped`` aborts the start, which then raises ServiceStoppedError. ``note`` is a file with
        their addresses, which is removed when this process dies.
        """
        install_missing("rabbitmq-server", "redis-server")
        self.rabbitmq = EmbeddedRabbitMQ(kept and kept / "rabbitmq")
        self.redis = EmbeddedRedis(kept and kept / "redis", note)
        self._stopped = stopped

    @property
    def amqp_url(self) -> str:
        """Password included: never log it."""
        return self.rabbitmq.url

    @property
    def redis_url(self) -> str:
        """Password included: never log it."""
        return self.redis.url

    @property
    def management_url(self) -> str | None:
        """Address of RabbitMQ's HTTP API, password included: never log it."""
        return self.rabbitmq.management_url

    def start(self) -> Self:
        """Start both in parallel and wait until they serve clients."""
        try:
            self.rabbitmq.launch()
            self.redis.launch()
            self.redis.wait_until_ready(self._stopped)
            self.rabbitmq.wait_until_ready(self._stopped)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End both, and remove their folders unless kept. Idempotent."""
        self.rabbitmq.close()
        self.redis.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
