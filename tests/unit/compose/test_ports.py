"""Ports of the loopback interface, and the users listening on them."""

from __future__ import annotations

import os
import socket

import pytest

from tiercel.compose import server as compose_server
from tiercel.compose.errors import ServiceStartError
from tiercel.compose.server import LOOPBACK, free_port, listeners


def test_where_every_port_is_taken_one_line_says_so():
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceStartError, match=rf"no port from {port} to {port} of 127"):
            free_port(range(port, port + 1))


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_what_takes_connections_to_the_loopback_address_is_seen_with_its_user(address):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        server.bind((address, 0))
        port = server.getsockname()[1]
        assert listeners(port) == set(), "it does not listen"
        server.listen()
        assert listeners(port) == {os.geteuid()}
    assert listeners(port) == set()


def test_a_connection_is_no_listener_and_neither_is_one_at_another_address():
    with (
        socket.create_server((LOOPBACK, 0)) as server,
        socket.create_connection(server.getsockname()) as caller,
    ):
        assert listeners(caller.getsockname()[1]) == set()
    with socket.create_server(("127.0.0.9", 0)) as other:
        assert listeners(other.getsockname()[1]) == set()


def test_a_machine_without_ipv6_has_no_table_of_it(monkeypatch):
    monkeypatch.setattr(
        compose_server, "_TABLES", {**compose_server._TABLES, "/nowhere/tcp6": {"0" * 32}}
    )
    with socket.create_server((LOOPBACK, 0)) as server:
        assert listeners(server.getsockname()[1]) == {os.geteuid()}
