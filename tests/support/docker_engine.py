"""The Docker engine of this machine, for tests that cannot run without one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import docker
import pytest

from tests.images.engine import engine
from tiercel.compose.errors import ServiceMissingError


def all_must_run() -> bool:
    """Return True in CI, where a skipped test would hide a failure."""
    return "CI" in os.environ


@contextmanager
def docker_engine() -> Iterator[docker.DockerClient]:
    """A client of the Docker engine. Without an engine the test is skipped; in CI it fails."""
    try:
        client = engine()
    except ServiceMissingError as error:
        if all_must_run():
            raise
        pytest.skip(str(error))
    with closing(client):
        yield client
