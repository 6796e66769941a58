"""A RabbitMQ cluster of three embedded nodes, so that a quorum queue survives the loss of one."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from urllib.parse import urlsplit

from tests.support.entered import Entered
from tiercel.compose.embedded import EmbeddedRabbitMQ
from tiercel.compose.guard import Launch
from tiercel.compose.install import install_missing
from tiercel.compose.server import free_port

# Nodes find each other without a port mapper only if all use one port, so each has its own address.
_HOSTS = ("127.0.0.11", "127.0.0.12", "127.0.0.13")


class _Node(EmbeddedRabbitMQ):
    """One node of the cluster."""

    def __init__(self, host: str, password: str, cookie: str, shared_port: int) -> None:
        super().__init__()
        self._host = host
        self._password = password
        self._cookie = cookie
        self._shared_port = shared_port

    @property
    def _ports(self) -> Collection[int]:
        # The port for the other nodes is on the node's own address.
        return (self._port, self._management_port)

    def _configure(self) -> None:
        super()._configure()
        self._dist_port = self._shared_port
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        lines += [
            f"cluster_formation.classic_config.nodes.{n} = {_name(host)}"
            for n, host in enumerate(_HOSTS, 1)
        ]
        with (self.folder / "rabbitmq.conf").open("a") as config:
            config.write("\n".join([*lines, ""]))
        cookie = self.folder / ".erlang.cookie"
        cookie.unlink(missing_ok=True)
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)

    def _launch(self) -> Launch:
        launch = super()._launch()
        environment = dict(launch.env or {})
        arguments = environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
        arguments = arguments.replace("-sname tiercel@localhost", f"-name {_name(self._host)}")
        environment |= {
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODENAME": _name(self._host),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments.replace(
                "127,0,0,1", self._host.replace(".", ",")
            ),
        }
        return replace(launch, env=environment)


class ClusteredRabbitMQ(Entered):
    """A server whose URL names the three nodes; its management API is the last node's."""

    def __init__(self) -> None:
        install_missing("rabbitmq-server")
        self.nodes: list[_Node] = []

    def _enter(self, exits: ExitStack) -> None:
        shared = (secrets.token_urlsafe(16), secrets.token_hex(16), free_port())
        self.nodes = [_Node(host, *shared) for host in _HOSTS]
        for node in self.nodes:
            exits.callback(node.close)
            node.launch()
        for node in self.nodes:
            node.wait_until_ready()

    @property
    def url(self) -> str:
        parts = urlsplit(self.nodes[0].url)
        hosts = ",".join(urlsplit(node.url).netloc.rpartition("@")[2] for node in self.nodes)
        return f"amqp://{parts.username}:{parts.password}@{hosts}/%2F"

    @property
    def management_url(self) -> str:
        return self.nodes[-1].management_url


def _name(host: str) -> str:
    return f"tiercel@{host}"
