"""The life of a process: logging, signals, the heartbeat for health checks, and retries while
Redis is away.

Logs are plain text, or one JSON object per line. Log records of bolts in Spark's Python workers
arrive here too, through ``driver/process``. A record worth counting or searching for names its
event: ``log.info("…", extra={"event": "channel_lost"})``. Other keys of ``extra`` become keys of
the JSON object. Logs go to stderr; stdout is for results.
"""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from tiercel.acker.errors import RedisUnavailableError
from tiercel.queues import outage
from tiercel.spark_jobs.logs.formatters import TextFormatter, log_to, plain_handler, redact

if TYPE_CHECKING:
    from rich.console import Console

    from tiercel.workers.config import LogFormat, Settings

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_FIRST_WAIT_S = 0.1


def set_up_logging(
    log_format: LogFormat, level: str = "info", component: str = "", console: Console | None = None
) -> None:
    """Send all log records to stderr; replace the handlers of an earlier call.

    ``component`` names this process in records without a component. ``console`` is the rich
    console that shows a progress bar, if there is one: log lines are written above the bar.
    """
    log_to(_handler(log_format, component, console), level)


def _handler(log_format: LogFormat, component: str, console: Console | None) -> logging.Handler:
    if log_format == "json" or (console is None and not sys.stderr.isatty()):
        return plain_handler(log_format, component)
    from rich.console import Console  # noqa: PLC0415 - costs 60 ms, and only a terminal needs it
    from rich.logging import RichHandler  # noqa: PLC0415 - as above

    rich = RichHandler(
        console=console or Console(stderr=True),
        show_path=False,
        omit_repeated_times=False,
        log_time_format="%H:%M:%S",
        markup=False,
    )
    rich.setFormatter(TextFormatter(component, short=True))
    return rich


def on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGINT and SIGTERM, in a thread; a second signal ends the process at once.
    A process whose work is done ends with its own exit code, also if a signal comes just then.

    The handler itself must not call ``stop``: it may have interrupted a wait for the very event
    that ``stop`` sets, and would deadlock. ``SimpleQueue.put`` is safe in a handler.
    """
    signals: SimpleQueue[int] = SimpleQueue()

    def first(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        signals.put(number)

    def attend() -> None:
        while signals.get():
            stop()

    threading.Thread(target=attend, name="signals", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, first)
        # As Python ends it gives up its handlers, but still ignores ignored signals.
        atexit.register(signal.signal, number, signal.SIG_IGN)


class Heartbeat:
    """A file that the loop touches while it turns; health checks look at its age."""

    def __init__(self, path: Path | None = None) -> None:
        """``path`` of None: no health check."""
        self._path = path

    def beat(self) -> None:
        """Touch the file; call it about once per second.

        A failure is logged once and disables the heartbeat.
        """
        if self._path is None:
            return
        try:
            self._path.touch()
        except OSError as error:
            self._path = None
            log.warning("no heartbeat from now on: %s", error, extra={"event": "heartbeat_failed"})


def name_servers(who: str, settings: Settings) -> None:
    """Log which servers ``who`` uses, without passwords."""
    log.info(
        "%s on RabbitMQ %s, Redis %s",
        who,
        redact(settings.amqp or "(none)"),
        redact(settings.redis or "(none)"),
        extra={"event": "servers_named"},
    )


def patiently(
    stopped: threading.Event, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """Repeat the call until Redis answers, and return its result; None if ``stopped`` is set first.

    Logs the outage: see ``tiercel.queues.outage``. Raises other errors.
    """
    waiter = object()
    try:
        # The first call bypasses tenacity, whose overhead exceeds a read of the outcome feed.
        return call(*args, **kwargs)
    except RedisUnavailableError as error:
        if stopped.is_set():
            return None
        outage.REDIS.begins(waiter, error)
    stopped.wait(_FIRST_WAIT_S)

    def sleep(seconds: float) -> None:
        stopped.wait(seconds)

    def failed(state: RetryCallState) -> None:
        outage.REDIS.begins(waiter, (state.outcome and state.outcome.exception()) or "")

    retrying = Retrying(
        retry=retry_if_exception_type(RedisUnavailableError),
        wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=2),
        stop=lambda _: stopped.is_set(),
        sleep=sleep,
        before_sleep=failed,
        retry_error_callback=lambda _: None,
    )
    try:
        found = retrying(call, *args, **kwargs)
        if not stopped.is_set():
            outage.REDIS.ends(waiter)
        return found
    finally:
        outage.REDIS.leaves(waiter)
