"""The Docker engine of this machine, for tests that cannot do without one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import docker
import pytest

from tests.images.engine import engine
from tiercel.compose.errors import ServiceMissingError


def all_must_run() -> bool:
    """Return True in CI: a test that is left out there would be a failure that nothing shows."""
    return "CI" in os.environ


@contextmanager
def docker_engine() -> Iterator[docker.DockerClient]:
    """A client of it. Where there is none the test is left out, and in CI it fails."""
    try:
        client = engine()
    except ServiceMissingError as error:
        if all_must_run():
            raise
        pytest.skip(str(error))
    with closing(client):
        yield client
