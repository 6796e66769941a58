import pytest

from acker import LedgerRefusedError, LedgerUnavailableError
from spark_jobs.patience import patiently


def test_what_redis_does_not_answer_is_asked_again():
    answers = [LedgerUnavailableError("away"), LedgerUnavailableError("away"), 7]

    def call(factor):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return factor * answer

    assert patiently(call, 6) == 42


def test_what_another_call_cannot_help_is_raised_at_once():
    calls = []

    def call():
        calls.append(1)
        raise LedgerRefusedError("refused")

    with pytest.raises(LedgerRefusedError, match="refused"):
        patiently(call)
    assert len(calls) == 1
