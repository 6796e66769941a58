"""Turns errors that the user must act on into one line on stderr and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tiercel.acker.errors import AckerError
from tiercel.compose.errors import ServiceError
from tiercel.queues.errors import QueuesError
from tiercel.spark_jobs.errors import SparkJobsError
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.workers.errors import WorkersError
from tiercel.workers.terminal import say

# The roots of our error trees; their messages say what to do. Anything else is a bug, and
# keeps its traceback.
EXPECTED = (WorkersError, ServiceError, AckerError, QueuesError, SparkJobsError)

USAGE = 2


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Around a command: ``tiercel: what is wrong and what to do``, exit code 2, no traceback.

    Also usable as a decorator.
    """
    try:
        yield
    except EXPECTED as error:
        message = str(error) or type(error).__doc__ or type(error).__name__
        say(f"tiercel: {redact(message)}", err=True)
        raise SystemExit(USAGE) from None
