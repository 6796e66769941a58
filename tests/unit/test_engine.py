"""Looking for a Docker engine."""

import gc

import pytest

from compose.engine import _answering


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_an_engine_that_is_away_leaves_no_connection_behind(monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    assert _answering() is None
    gc.collect()
