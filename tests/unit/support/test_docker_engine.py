"""Without a Docker engine a test is skipped, but fails in CI."""

from __future__ import annotations

import pytest

from tests.support import docker_engine
from tiercel.compose.errors import ServiceMissingError


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch):
    def missing():
        raise ServiceMissingError("no Docker engine answers")

    monkeypatch.setattr(docker_engine, "engine", missing)


def test_on_a_developers_machine_the_test_is_left_out_and_says_why(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with (
        pytest.raises(pytest.skip.Exception, match="no Docker engine answers"),
        docker_engine.docker_engine(),
    ):
        pass


def test_in_ci_it_fails(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with (
        pytest.raises(ServiceMissingError, match="no Docker engine answers"),
        docker_engine.docker_engine(),
    ):
        pass
