"""Errors that a person must act on: one line, exit code 2."""

from __future__ import annotations

import pytest

from tiercel.acker.errors import RedisRefusedError
from tiercel.compose.errors import ServiceMissingError
from tiercel.queues.errors import BrokerRefusedError
from tiercel.spark_jobs.errors import SparkUnavailableError
from tiercel.workers.cli.app import one_line_errors
from tiercel.workers.errors import UsageError


@pytest.mark.parametrize(
    "error",
    [
        UsageError,
        ServiceMissingError,
        RedisRefusedError,
        BrokerRefusedError,
        SparkUnavailableError,
    ],
)
def test_an_expected_error_is_one_line_without_a_traceback_or_a_password(
    error: type[Exception], capsys
) -> None:
    with pytest.raises(SystemExit) as exit_, one_line_errors():
        raise error("no login at amqp://guest:s3cret@rabbit")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "tiercel: no login at amqp://guest:***@rabbit\n"


def test_an_unexpected_error_keeps_its_traceback() -> None:
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError("a bug")


def test_without_an_error_nothing_happens(capsys) -> None:
    with one_line_errors():
        pass
    assert capsys.readouterr().err == ""
