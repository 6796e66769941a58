"""The containers that the tests use."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.images.engine import engine
from tests.images.server_images import SERVERS, image_of, server_named
from tests.support.broker import version
from tests.support.containers import ContainerRabbitMQ, ContainerServer
from tests.support.waiting import wait_until
from tiercel.compose.errors import ServiceMissingError

pytestmark = pytest.mark.containers


def pytest_generate_tests(metafunc):
    """Run once per kind of server that ``--servers`` puts into a container; the others are
    embedded.
    """
    if "server" in metafunc.fixturenames:
        named = {
            server_named(name).name
            for name in metafunc.config.getoption("servers").split(",")
            if name
        }
        kinds = ["rabbitmq" if name == "rabbitmq" else "redis" for name in sorted(named)]
        metafunc.parametrize("server", kinds, indirect=True)


@pytest.fixture
def server(request) -> ContainerServer:
    return request.getfixturevalue(f"shared_{request.param}")


def test_a_server_runs_as_an_ordinary_user_and_all_of_its_processes_do(server):
    assert server.run("id", "-u").strip() != "0"
    # A health check runs as root for a moment.
    wait_until(lambda: server.users() == {server.server.name}, 30, "no process of another user")


def test_its_ports_are_on_the_loopback_interface_only(server):
    assert server.addresses() == {"127.0.0.1"}


def test_its_password_is_on_no_command_line_and_in_no_environment(server):
    assert server.password not in server.inspect()


def test_it_calls_itself_healthy(server):
    wait_until(lambda: server.health() in {"healthy", "none"}, 60, "a healthy container")


def test_it_has_the_version_that_it_is_named_for(server):
    if isinstance(server, ContainerRabbitMQ):
        assert "{}.{}".format(*version(server.url)) == server.server.version
    else:
        assert f"v={server.server.version}." in server.run(
            f"{server.server.name}-server", "--version"
        )


def test_an_image_is_made_once(server):
    with closing(engine()) as client:
        images = {image_of(client, server.server) for _ in range(2)}
        assert len(images) == 1


def test_an_image_that_does_not_exist_is_named(server):
    with (
        closing(engine()) as client,
        pytest.raises(ServiceMissingError, match=r"no-such-image:.*cannot be pulled"),
    ):
        image_of(client, server.server, "no-such-image:{version}")


def test_an_unknown_server_is_answered_with_those_there_are():
    with pytest.raises(ServiceMissingError) as caught:
        server_named("redis:1.0")
    assert all(name in str(caught.value) for name in SERVERS)
