"""An I/O thread that keeps one connection with one channel to RabbitMQ, and reconnects."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pika.adapters.select_connection import IOLoop

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import backoff_s, translate
from tiercel.queues.broker.frames import Connection
from tiercel.queues.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    MessageTooLargeError,
    PassingRefusalError,
    QueuesError,
)
from tiercel.queues.outage import Outage

log = logging.getLogger(__name__)

# A connection that lived this long was a success: the next failure starts with the shortest wait
# again.
_STABLE_S = 5.0
# A broker that is starting may refuse calls that it accepted before. After this many refusals in a
# row we believe it.
_REFUSALS = 5
# Time within which a ``PassingRefusalError`` may pass by itself once everything has worked. For
# logins as for Redis (acker/redis/errors.py).
_PATIENCE_S = 600.0


# Checks per heartbeat interval for data from the broker.
_LOOKS = 4
# Number of checks without data from the broker, which sends some at least twice per heartbeat
# interval: three in a row are missing. Checks are counted, not seconds: a process that was stopped
# has not listened.
_SILENT_LOOKS = 6


# Per broker: the links of one process share its lines.
_outages: dict[str, Outage] = {}


class LinkUser(Protocol):
    """User of the channel. All methods are called on the I/O thread."""

    def prepare(self) -> None:
        """Declare the queues. Called before each connection, and may block.

        Raises QueuesError.
        """

    def opened(self, channel: Any) -> None:
        """Take over a new channel; all state of the previous one is void."""

    def lost(self, error: QueuesError) -> None:
        """Handle a channel that is gone, or could not be opened.

        A new one follows, unless ``failed`` or the end comes next.
        """

    def failed(self, error: QueuesError) -> None:
        """Handle the end of the link by itself: an operator must act."""


class Link:
    """Connects, and reconnects with growing waits.

    Tries the hosts in turn, and ends when told to or when refused.

    A refusal (login, virtual host, missing queue) ends it at once if it never worked before, else
    after five in a row; refused access, a certificate that is not trusted, and a missing queue or
    exchange after ten minutes.
    """

    def __init__(self, address: Address, user: LinkUser, name: str) -> None:
        """``name`` is shown in RabbitMQ's list of connections. Raises AddressError."""
        self._address = address
        self._user = user
        self._name = name
        address.parameters(name)  # raises before anything is tried
        self._outage = _outages.setdefault(str(address), Outage("RabbitMQ"))
        self._loop = IOLoop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._connection: Any = None
        # The timer of the next attempt to connect.
        self._next: object | None = None
        self._why: QueuesError | None = None
        self._attempts = self._refusals = self._host = 0
        self._opened_at: float | None = None
        # Time of the first refusal in a row.
        self._refused_at = 0.0
        self._worked = self._proven = self._finishing = False
        # The broker refused something over the last channel, such as its consumer.
        self._refused_open = False
        # The broker takes no messages over this connection now.
        self.blocked = False

    # -- from any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Run a function on the I/O thread soon; do nothing once the link has ended."""
        self._loop.add_callback_threadsafe(partial(self._guarded, function))

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; return False if it still runs."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- on the I/O thread -------------------------------------------------------------------------

    def later(self, delay_s: float, function: Callable[[], None]) -> object:
        """Run a function after a delay; return a handle for ``forget``."""
        return self._loop.call_later(delay_s, partial(self._guarded, function))

    def forget(self, handle: object) -> None:
        """Cancel a call of ``later``."""
        self._loop.remove_timeout(handle)

    def healthy(self) -> None:
        """Note that the channel did useful work: failures are counted from zero again."""
        self._attempts = self._refusals = 0
        self._proven = True
        self._works()

    def restart(self, why: QueuesError) -> None:
        """Give up this connection and open a new one."""
        connection = self._connection
        self._why = self._why or why
        if connection is not None and not (connection.is_closing or connection.is_closed):
            connection.close()

    def abandon(self, why: QueuesError) -> None:
        """As ``restart``, for a broker that answers nothing on this connection.

        It would not answer the close either.
        """
        self._why = self._why or why
        # pika has no public way to end a connection from this side alone.
        self._connection._terminate_stream(None if self._connection.is_closing else why)  # noqa: SLF001

    def finish(self) -> None:
        """Close the connection in good order, after everything sent before, and end the thread."""
        self._finishing = True
        connection = self._connection
        if connection is None or connection.is_closed:
            self._outage.leaves(self)
            self._loop.stop()
        elif connection.is_open:
            connection.close()
        # Otherwise it is being opened, which pika cannot interrupt, or being closed: the next
        # callback sees that the link is to finish.

    def _run(self) -> None:
        try:
            self._next = self._loop.call_later(0, self._connect)
            while not self._turn():
                pass
        except (
            Exception
        ) as error:  # our own bug; the owner must not wait for a thread that has died
            log.exception("the thread %s ends", self._name, extra={"event": "link_broken"})
            self._user.failed(
                BrokerUnavailableError(f"an error in the connection to {self._address}: {error}")
            )
        finally:
            self._loop.close()

    def _turn(self) -> bool:
        """Run the loop until it is stopped.

        Return False if an error escaped from it, and a new connection follows.
        """
        try:
            self._loop.start()
        except Exception as error:  # noqa: BLE001 - _begin_anew logs it
            self._begin_anew(error)
            return False
        return True

    def _guarded(self, function: Callable[[], None]) -> None:
        # An error that escapes from a callback ends pika's loop, and loses the timers that were due
        # at the same time.
        try:
            function()
        except Exception as error:  # noqa: BLE001 - _begin_anew logs it
            self._begin_anew(error)

    def _begin_anew(self, error: Exception) -> None:
        """Reconnect after a bug of ours, or of pika.

        The state of this connection is in doubt, but the broker has all messages.
        """
        log.error(
            "%s: connecting again after an error",
            self._name,
            exc_info=error,
            extra={"event": "link_error"},
        )
        why = BrokerUnavailableError(f"an error in the connection to {self._address}: {error}")
        connection = self._connection
        if connection is not None and not connection.is_closed:
            try:
                self.abandon(why)
            except Exception:
                log.exception(
                    "%s: the connection is left as it is", self._name, extra={"event": "link_error"}
                )
            else:
                return
        if self._next is None:
            self._down(why)

    def _connect(self) -> None:
        self._next = None
        if self._finishing:
            return
        self._attempts += 1
        self._connection = self._why = self._opened_at = None
        try:
            self._user.prepare()
            # Read again: certificates are renewed while a process runs.
            parameters = self._address.parameters(self._name)
        except QueuesError as error:
            self._down(error)
            return
        self._connection = Connection(
            parameters[self._host],
            on_open_callback=self._connection_opened,
            on_open_error_callback=self._connection_closed,
            on_close_callback=self._connection_closed,
            custom_ioloop=self._loop,
        )

    def _connection_opened(self, connection: Any) -> None:
        if self._finishing:
            connection.close()
            return
        connection.add_on_connection_blocked_callback(self._blocked)
        connection.add_on_connection_unblocked_callback(self._unblocked)
        connection.channel(on_open_callback=self._channel_opened)
        if self._address.heartbeat_s:
            self._listen(connection, heard=0, silent=0)

    def _listen(self, connection: Any, heard: int, silent: int) -> None:
        """Give up a connection over which no more data arrives.

        pika does too, but after two to three times as long.
        """
        if connection is not self._connection or connection.is_closed:
            return
        silent = silent + 1 if connection.bytes_received == heard else 0
        if silent > _SILENT_LOOKS:
            seconds = silent * self._address.heartbeat_s / _LOOKS
            self.abandon(
                BrokerUnavailableError(
                    f"RabbitMQ at {self._address} has been silent for {seconds:.0f} s"
                )
            )
            return
        if self.blocked:
            self._report_alarm()
        again = partial(self._listen, connection, connection.bytes_received, silent)
        self._loop.call_later(self._address.heartbeat_s / _LOOKS, again)

    def _blocked(self, _connection: Any, _method: Any) -> None:
        self.blocked = True
        self._report_alarm()

    def _unblocked(self, _connection: Any, _method: Any) -> None:
        self.blocked = False
        self._works()

    def _report_alarm(self) -> None:
        self._outage.begins(
            self, f"RabbitMQ at {self._address} takes no messages now (memory or disk alarm)"
        )

    def _works(self) -> None:
        # Messages from before an alarm are confirmed during it.
        if not self.blocked:
            self._outage.ends(self)

    def _channel_opened(self, channel: Any) -> None:
        channel.add_on_close_callback(self._channel_closed)
        self._opened_at = time.monotonic()
        self._worked = True
        if self._refused_open:
            # A channel that opens proves nothing: the last one did too.
            self.later(_STABLE_S, partial(self._still_open, channel))
        else:
            self._works()
        self._user.opened(channel)

    def _still_open(self, channel: Any) -> None:
        if channel.is_open:
            self._works()

    def _channel_closed(self, _channel: Any, reason: BaseException) -> None:
        if not self._finishing:
            self.restart(translate(reason, self._address))

    def _connection_closed(self, connection: Any, reason: BaseException) -> None:
        if connection is self._connection:
            self._down(self._why or translate(reason, self._address))

    def _down(self, error: QueuesError) -> None:
        self._connection = None
        self.blocked = False
        if self._opened_at is not None and time.monotonic() - self._opened_at > _STABLE_S:
            self.healthy()
        self._refusals = self._refusals + 1 if isinstance(error, BrokerRefusedError) else 0
        self._refused_open = self._refusals > 0 and self._opened_at is not None
        if self._refusals == 1:
            self._refused_at = time.monotonic()
        self._user.lost(error)
        if self._finishing:
            self._outage.leaves(self)
            self._loop.stop()
        elif self._refusals and not self._may_try_again(error):
            self._outage.leaves(self)
            self._loop.stop()
            self._user.failed(error)
        else:
            self._host = (self._host + 1) % len(self._address.hosts)
            if not isinstance(error, MessageTooLargeError):
                self._outage.begins(self, error)
            self._next = self._loop.call_later(backoff_s(self._attempts + 1), self._connect)

    def _may_try_again(self, error: QueuesError) -> bool:
        """Return True if this refusal may pass."""
        if not self._worked:
            return False
        if self._proven and isinstance(error, PassingRefusalError):
            return time.monotonic() - self._refused_at < _PATIENCE_S
        return self._refusals < _REFUSALS
