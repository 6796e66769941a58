"""Container images of the servers, for tests: official ones if they can be pulled, else built from
Debian's packages.

python -m tests.images.server_images rabbitmq:4.3 redis:8.0 valkey:9.1

A release of Debian is bootstrapped once, with all its servers; each server is then a thin layer
over it. A built image is found again by its tag, which has a digest of the recipe. Built images run
as an ordinary user and take the same commands as the official ones.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import docker
from docker.errors import APIError, BuildError, ImageNotFound

from tests.images.debian import Release, release_image, version_of
from tests.images.engine import engine
from tiercel.compose.errors import ServiceError, ServiceMissingError, ServiceStartError

_RABBITMQ_FILES = {
    "rabbitmq.conf": "loopback_users = none\nlog.console = true\n",
    "enabled_plugins": "[rabbitmq_management].\n",
}
# A broker answers the greeting with a frame of type 1 once it serves clients; its own tools would
# start an Erlang each time.
_RABBITMQ = r"""
COPY rabbitmq.conf enabled_plugins /etc/rabbitmq/
ENV PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/var/lib/rabbitmq
ENV RABBITMQ_LOGS=- RUNNING_UNDER_SYSTEMD=true
EXPOSE 5671 5672 15672
WORKDIR /var/lib/rabbitmq
USER rabbitmq
HEALTHCHECK --interval=10s --start-period=60s CMD bash -c \
 'exec 3<>/dev/tcp/127.0.0.1/5672; printf "AMQP\0\0\11\1" >&3; read -t 5 -r -n 1 kind <&3; \
 [ "$kind" = $'"'"'\1'"'"' ]'
CMD ["rabbitmq-server"]
"""
_REDIS = """
RUN mkdir -p /data && chown {name}: /data
EXPOSE 6379
WORKDIR /data
USER {name}
HEALTHCHECK --interval=10s --start-period=30s CMD {name}-cli ping | grep -qE "PONG|NOAUTH"
CMD ["{name}-server", "--bind", "*", "-::*", "--protected-mode", "no"]
"""

_BOOKWORM = Release(suite="bookworm", packages=("rabbitmq-server", "redis-server"))
_TRIXIE = Release(suite="trixie", packages=("rabbitmq-server",))
_FORKY = Release(suite="forky", packages=("rabbitmq-server", "redis-server", "valkey-server"))


@dataclass(frozen=True, kw_only=True)
class ServerVersion:
    """One server in one version."""

    # ``rabbitmq``, ``redis`` or ``valkey``: also the user in the image, and the prefix of program
    # names.
    name: str
    # Major and minor.
    version: str
    # The image to pull.
    official: str
    # Base of the image if no image can be pulled.
    release: Release

    def __str__(self) -> str:
        return f"{self.name}:{self.version}"


SERVERS = {
    str(server): server
    for server in (
        ServerVersion(
            name="rabbitmq", version="3.10", official="rabbitmq:3.10-management", release=_BOOKWORM
        ),
        ServerVersion(
            name="rabbitmq", version="4.0", official="rabbitmq:4.0-management", release=_TRIXIE
        ),
        ServerVersion(
            name="rabbitmq", version="4.3", official="rabbitmq:4.3-management", release=_FORKY
        ),
        ServerVersion(name="redis", version="7.0", official="redis:7.0", release=_BOOKWORM),
        ServerVersion(name="redis", version="8.0", official="redis:8.0", release=_FORKY),
        ServerVersion(name="valkey", version="9.1", official="valkey/valkey:9.1", release=_FORKY),
    )
}


def server_named(name: str) -> ServerVersion:
    """Return the server of a name like ``redis:8.0``; raise ServiceMissingError with all names."""
    if name not in SERVERS:
        raise ServiceMissingError(f"no server {name!r}; there are {', '.join(SERVERS)}")
    return SERVERS[name]


def image_of(client: docker.DockerClient, server: ServerVersion, instead: str | None = None) -> str:
    """Return the name of an image of this server, after getting it.

    The first time takes up to two minutes.

    ``instead`` names an image to use in place of the official one; it is never built, and
    ``{version}`` in it becomes the server's. Raises ServiceMissingError, ServiceStartError.
    """
    if instead:
        name = instead.replace("{version}", server.version)
        if _is_here(client, name) or _pulled(client, name):
            return name
        raise ServiceMissingError(
            f"the image {name} is not here and cannot be pulled; correct its name"
        )
    built = f"tiercel-{server}-{_digest(server)}"
    for name in (server.official, built):
        if _is_here(client, name):
            return name
    if _pulled(client, server.official):
        return server.official
    base = release_image(client, server.release)
    version = version_of(client, server.release, f"{server.name}-server")
    if not f"{version}.".startswith(f"{server.version}."):
        raise ServiceMissingError(
            f"Debian {server.release.suite} has {server.name} {version} now, not {server.version}; "
            "build that version from another release, or test the new one"
        )
    _build(client, built, f"FROM {base}\n{_dockerfile(server)}", _files(server))
    return built


def _is_here(client: docker.DockerClient, name: str) -> bool:
    try:
        client.images.get(name)
    except ImageNotFound:
        return False
    return True


def _pulled(client: docker.DockerClient, name: str) -> bool:
    try:
        client.images.pull(name)
    except APIError:
        return False  # the image is missing, or its registry is unreachable
    return True


def _dockerfile(server: ServerVersion) -> str:
    return _RABBITMQ if server.name == "rabbitmq" else _REDIS.format(name=server.name)


def _files(server: ServerVersion) -> Mapping[str, str]:
    return _RABBITMQ_FILES if server.name == "rabbitmq" else {}


def _digest(server: ServerVersion) -> str:
    recipe = repr((server.release.tag, _dockerfile(server), sorted(_files(server).items())))
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def _build(
    client: docker.DockerClient, tag: str, dockerfile: str, files: Mapping[str, str]
) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for name, text in {"Dockerfile": dockerfile, **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    context.seek(0)
    try:
        client.images.build(fileobj=context, custom_context=True, tag=tag, rm=True, forcerm=True)
    except BuildError as error:
        raise ServiceStartError(f"could not build the image {tag}: {error}") from error


def main(names: Sequence[str]) -> int:
    """Run the command line: get the images of these servers, or of all, and print their names."""
    try:
        with closing(engine()) as client:
            for server in [server_named(name) for name in names or SERVERS]:
                began = time.monotonic()
                image = image_of(client, server)
                print(f"{server}: {image} ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201 - its answer
    except ServiceError as error:
        print(f"tiercel: {error}", file=sys.stderr)  # noqa: T201 - the command line's answer
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
