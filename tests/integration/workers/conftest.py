"""Fixtures of the tests of processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from tests.support.presences import InMemory, InRedis
from tiercel.workers.cli.app import app


@pytest.fixture(params=["memory", "redis"])
def seats(request: pytest.FixtureRequest) -> InMemory | InRedis:
    """The seats of a topology, on the memory twin of presence and on Redis."""
    return (
        InMemory() if request.param == "memory" else InRedis(request.getfixturevalue("redis_url"))
    )


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the logged messages."""
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def tiercel(redis_url: str) -> Callable[..., tuple[int, str]]:
    """Return a function that runs a command, with the ``answer`` to its question if it asks one,
    and returns the exit code and output.
    """

    def run(*arguments: str, answer: str | None = None, width: int = 300) -> tuple[int, str]:
        result = CliRunner().invoke(
            app,
            [*arguments, "--redis", redis_url],
            env={"COLUMNS": str(width)},
            input=answer,
            catch_exceptions=False,
        )
        return result.exit_code, result.stdout

    return run
