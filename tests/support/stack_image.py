"""The image of the compose file, built as on any machine, from a Debian base if
``python:3.12-slim`` cannot be pulled.

The build gets the settings of this machine's pip and TLS: an index, authorities. They are secrets
of the build, and are not in the image.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from io import BytesIO
from pathlib import Path

from docker.errors import APIError, ImageNotFound

from tests.images.debian import Release, release_image
from tests.support.docker_cli import ROOT, docker_environment, run
from tests.support.pip_settings import pip_settings

OFFICIAL = "python:3.12-slim"
DEBIAN = Release(suite="bookworm", packages=("python3", "python3-venv"))
# Unpacked without its dependencies, which are for pages that are not used here.
PROMETHEUS = """
FROM {base}
RUN apt-get update -q && cd /tmp && apt-get download -q prometheus \\
    && dpkg -x prometheus_*.deb unpacked \\
    && mv unpacked/usr/bin/prom* /usr/bin/ && rm -rf /tmp/* /var/lib/apt/lists/* \\
    && mkdir /prometheus && chown 65534:65534 /prometheus
ENTRYPOINT ["prometheus"]
"""
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
# Named after this checkout, because another one on the same engine has its own code.
NAME = f"tiercel-test-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"


def base_image(client) -> str:
    return (
        OFFICIAL
        if is_here(client, OFFICIAL) or can_be_pulled(client, OFFICIAL)
        else release_image(client, DEBIAN)
    )


def prometheus_image(client) -> str:
    """Return the compose file's image, or Debian's Prometheus in an image that takes the same
    arguments.
    """
    [official] = re.findall(
        r"PROMETHEUS_IMAGE:-([^}]+)", (ROOT / "compose/docker-compose.yml").read_text()
    )
    if is_here(client, official) or can_be_pulled(client, official):
        return official
    dockerfile = PROMETHEUS.format(base=release_image(client, DEBIAN))
    name = f"tiercel-prometheus:{hashlib.sha256(dockerfile.encode()).hexdigest()[:12]}"
    if not is_here(client, name):
        client.images.build(fileobj=BytesIO(dockerfile.encode()), tag=name, rm=True, forcerm=True)
    return name


def is_here(client, image: str) -> bool:
    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


def can_be_pulled(client, image: str) -> bool:
    try:
        client.images.pull(image)
    except APIError:
        return False
    return True


def build_image(client) -> tuple[str, str]:
    """Return (image, base), with the current code in the image.

    The first build takes minutes, later ones seconds.
    """
    base = base_image(client)
    before = image_id(client)
    with tempfile.TemporaryDirectory() as folder:
        secrets = []
        if AUTHORITIES.exists():
            secrets += ["--secret", f"id=ca,src={AUTHORITIES}"]
        pip = Path(folder) / "pip.conf"
        pip.write_text(pip_settings())
        secrets += ["--secret", f"id=pip,src={pip}"]
        words = [
            "docker",
            "build",
            "--build-arg",
            f"BASE={base}",
            "-f",
            "compose/Dockerfile",
            "-t",
            NAME,
            *secrets,
            ".",
        ]
        run(*words, timeout=1500, cwd=ROOT, env=docker_environment())
    if before not in (None, image_id(client)):
        forget(client, before)
    return NAME, base


def image_id(client) -> str | None:
    try:
        return client.images.get(NAME).id
    except ImageNotFound:
        return None


def forget(client, image: str) -> None:
    """Remove images of code that is gone; layers still in use stay."""
    try:
        client.images.remove(image)
    except APIError:
        return
