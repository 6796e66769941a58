"""Errors that the bolts' side raises.

SparkJobsError
├── TopologyError           a topology that cannot run: an unknown component, stream or field
├── ConfigValueError        a setting with an impossible value
├── SparkUnavailableError   Spark cannot start here; the message names the missing part
├── SparkEndedError         Spark's JVM has ended unexpectedly
├── StaleTurnError          a later attempt, step or run has taken over the bolt task
├── LostStepsError          an inbox has lost steps that the ledger knows
├── TurnAgainError          another task is applying the same tuple: begin the step again
├── StateLayoutError        the state was written with another number of shards
├── SavepointError          states cannot be exported, or a file of states cannot be imported
└── TupleError              a bolt broke a rule of the collector; its tuple fails and
                            the worker goes on
    ├── AlreadyAckedError     acked or failed twice, or used as an anchor after that
    ├── ForeignTupleError     not a tuple that this bolt task received
    ├── UnknownStreamError    emitted on a stream that is not declared
    ├── DirectStreamError     emit on a direct stream, emit_direct on another, or to a task that
                              does not receive it
    ├── GroupingError         a custom grouping chose a task that does not receive the stream
    ├── BadAnchorsError       anchors of an ArrowBolt that are not rows of its input, or not one
                              for each output row
    ├── OtherMessageError     another message with the same identity was processed before
    ├── BadStateError         a key or value that a state cannot hold, or a state used
                              outside a call of its bolt
    ├── BadValuesError        the wrong number or type of values
    ├── NeverRunError         a method returned a coroutine or a generator
    └── OutputLimitError      one call emits more than may be kept until its step ends
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from functools import partial

log = logging.getLogger(__name__)

# Methods whose results were logged.
_IGNORED: set[str] = set()


class SparkJobsError(Exception):
    """An error of topologies and bolts."""


class TopologyError(SparkJobsError):
    """The topology cannot run; the message names the component and what to change."""


class ConfigValueError(SparkJobsError, ValueError):
    """A setting has an impossible value."""


class SparkUnavailableError(SparkJobsError):
    """Spark cannot start here; the message names the missing part."""


class SparkEndedError(SparkJobsError):
    """Spark's JVM has ended unexpectedly; a new one may be started."""


class StaleTurnError(SparkJobsError):
    """A later attempt, step or run has taken over the bolt task.

    The work of this one is discarded.
    """


class LostStepsError(SparkJobsError):
    """The inbox of a bolt task has lost its last steps, which the ledger knows."""


class TurnAgainError(SparkJobsError):
    """Another task of the component is applying the same tuple, or has just done so.

    The step had no effect: begin it again after a moment.
    """


class StateLayoutError(SparkJobsError):
    """The state was written with another number of shards, and its keys would not be found."""


class SavepointError(SparkJobsError):
    """States cannot be exported, or a file of states cannot be imported."""


class TupleError(SparkJobsError):
    """A bolt broke a rule of the collector: its tuple fails, and the worker goes on."""


class AlreadyAckedError(TupleError):
    """The tuple was acked or failed before, or the call that it belongs to has ended."""


class ForeignTupleError(TupleError):
    """The tuple was not received by this bolt task."""


class UnknownStreamError(TupleError):
    """The stream is not declared."""


class DirectStreamError(TupleError):
    """``emit`` on a direct stream, ``emit_direct`` on another, or to a task that does not receive
    the stream.
    """


class GroupingError(TupleError):
    """A custom grouping chose a task that does not receive the stream."""


class BadAnchorsError(TupleError, ValueError):
    """Anchors are not rows of the input, or not one for each row of the output."""


class BadValuesError(TupleError, ValueError):
    """The values do not fit the stream's fields."""


class NeverRunError(TupleError):
    """A method of a bolt returned a coroutine or a generator, which nothing would run."""


class OtherMessageError(TupleError):
    """Another message with the same identity and other content was processed before."""


class BadStateError(TupleError, ValueError):
    """A state cannot hold this key or value, or cannot be used here."""


class OutputLimitError(TupleError):
    """One call emits more than ``max_output_bytes``."""

    @classmethod
    def of(cls, component: str, limit: int) -> OutputLimitError:
        """Return the error for a component that may emit this many bytes per call."""
        return cls(
            f"{component!r} emits more than {shown_bytes(limit)} in one call: emit a reference to "
            "the data, split the message, or raise max_output_bytes"
        )


def check_result(result: object, method: Callable[..., object]) -> None:
    """Raise NeverRunError for the coroutine or generator that a bolt's method returned; log any
    other result once, because it is ignored.

    ``method`` may be wrapped in a ``functools.partial``. Call this only for a result that is not
    None, so that a bolt whose methods return nothing does not pass here.
    """
    method = method.func if isinstance(method, partial) else method
    name = getattr(method, "__qualname__", "execute")
    if isinstance(result, Generator | AsyncGenerator):
        raise NeverRunError(
            f"{name} returned a generator, which nothing runs: pass each value to collector.emit"
        )
    if isinstance(result, Awaitable):
        if isinstance(result, Coroutine):
            result.close()
        raise NeverRunError(
            f"{name} returned a {type(result).__name__}, which nothing awaits: write a plain "
            "method, or derive the bolt from AsyncBolt and write `async def execute`"
        )
    # ``return collector.emit(...)`` is a way to end early.
    tasks = isinstance(result, list) and all(type(each) is int for each in result)
    if not tasks and name not in _IGNORED:
        _IGNORED.add(name)
        log.warning(
            "%s returned a value of type %s, which is ignored: pass values to collector.emit",
            name,
            type(result).__name__,
            extra={"event": "result_ignored"},
        )


def shown_bytes(size: int) -> str:
    """Return a size in MiB, or in bytes if it is not a whole number of MiB.

    >>> shown_bytes(64 * 1024 * 1024), shown_bytes(1000)
    ('64 MiB', '1000 bytes')
    """
    mebibytes, rest = divmod(size, 1024 * 1024)
    return f"{size} bytes" if rest else f"{mebibytes} MiB"


# Ends a message about a tuple without a key.
NAME_IDENTITY = "publish each message with the id or header that QueueSpout(identity=…) names"


# Exit codes above this number are of a signal.
_BY_SIGNAL = 128


def how_jvm_ended(code: int) -> str:
    """Return how Spark's JVM ended and where to read on; ``code`` is ``Popen.returncode``."""
    # A JVM that obeys a signal ends with an exit code, as a shell does.
    number = -code if code < 0 else code - _BY_SIGNAL
    where = "its last lines, with the event spark_output, are before this one"
    if number == signal.SIGKILL:
        return (
            "Spark's JVM was killed by SIGKILL: by hand, or by the kernel because the machine was "
            "short of memory (dmesg says so)"
        )
    if number in set(signal.Signals):
        return f"Spark's JVM was ended by {signal.Signals(number).name}: {where}"
    return f"Spark's JVM has ended with exit code {code}: {where}"
