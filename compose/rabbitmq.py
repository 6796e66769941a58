"""A private RabbitMQ: one Erlang process and its helpers, no epmd, loopback only.

The broker's own script is run, not Debian's wrapper around it, which insists on the user
``rabbitmq`` and on /var. Erlang's port mapper epmd would be a daemon that outlives us and may be
shared with others: the node is told its distribution port instead, so that none is started.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Collection
from pathlib import Path

from tiercel.compose.errors import ServiceError
from tiercel.compose.guard import Launch
from tiercel.compose.install import PLAIN_ENVIRONMENT, find_rabbitmq, require
from tiercel.compose.server import LOOPBACK, EmbeddedServer, free_port

_USER = "tiercel"
_NODE = f"{_USER}@localhost"
_CONTROL_TIMEOUT_S = 60
_CONFIG = """\
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
# Idle schedulers must not spin: Spark needs the processors. Quorum queues report their depths once
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
    """A broker whose queues and messages survive ``stop`` and ``kill``.

    ``restart(keep_data=False)`` loses them.

    Two surprises for tests. When RabbitMQ 3.10 is killed within seconds of its first start it may
    forget declarations, and it writes the table of quorum queues about three seconds late: a queue
    that was declared just before ``kill`` exists afterwards, but does not work. And a passive
    declare of a quorum queue returns the depth that the queue has applied so far, or 0 if its
    leader is silent for 250 ms: messages that were just given back may be missing.
    """

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
        """The HTTP API, password included: never log it."""
        return f"http://{_USER}:{self._password}@{LOOPBACK}:{self._management_port}"

    def control(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` on the running broker, as in ``control("list_queues")``; return its
        output. Raises ServiceError with its last line.
        """
        program = self._program.with_name("rabbitmqctl")
        environment = {
            **PLAIN_ENVIRONMENT,
            "HOME": str(self.folder),  # the Erlang cookie is there
            "ERL_FLAGS": f"-dist_listen false -start_epmd false -erl_epmd_port {self._dist_port}",
        }
        command = [str(program), "--quiet", "-n", _NODE, *arguments]
        done = subprocess.run(  # noqa: S603 - the broker's own program
            command,
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_CONTROL_TIMEOUT_S,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or [
                f"exit code {done.returncode}"
            ]
            raise ServiceError(f"rabbitmqctl {arguments[0]}: {said[-1]}")
        return done.stdout

    @property
    def _ports(self) -> Collection[int]:
        return (self._port, self._management_port, self._dist_port)

    def _configure(self) -> None:
        self._port, self._management_port, self._dist_port = free_port(), free_port(), free_port()
        text = _CONFIG.format(
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
        """Write the Erlang cookie, the secret that controls the broker, before Erlang derives one
        from the time of day.
        """
        path = self.folder / ".erlang.cookie"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
            file.write(secrets.token_hex(32))

    def _launch(self) -> Launch:
        settings = {
            "HOME": str(self.folder),  # the Erlang cookie is there
            # makes the script exec the broker, without a shell in between
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(
                _ERL_ARGS.format(node=_NODE, dist_port=self._dist_port).split()
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

    The listener opens last, after the default user was made and the plugins were started. Raises
    OSError if no process listens.
    """
    with socket.create_connection((LOOPBACK, port), timeout=5) as connection:
        connection.sendall(_AMQP_GREETING)
        return connection.recv(1) == _METHOD_FRAME
