"""Holds a topology's lease for one driver, and renews it on a thread of its own."""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import suppress
from dataclasses import replace

from tiercel.acker.errors import AckerError, RedisUnavailableError
from tiercel.spark_jobs.topology.graph import Topology, shape_of
from tiercel.spark_jobs.whereabouts import of_this_process
from tiercel.workers.control.lease import DRIVER, Holder, Lease

log = logging.getLogger(__name__)

_RENEW_S = DRIVER.lasts.total_seconds() / 4


class Keeper:
    """One driver's hold on the lease. Thread-safe.

    While Redis is away the lease counts as held: no other driver can take it then either, and
    writes of this driver's run are refused as soon as another driver's run has begun.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        # Every call that takes or leaves the lease is made under the lock: a renewal must not
        # revive a run that has ended, nor a lease that was given up.
        self._lock = threading.Lock()
        # A holder without a run.
        self._idle = Holder(driver=secrets.token_hex(8), whereabouts=of_this_process())
        self._me = self._idle
        self._held = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    @property
    def held(self) -> bool:
        """True while no other driver is known to have the lease."""
        return self._held

    def take(self) -> bool:
        """Try to take the lease; from then on it is renewed. Raises RedisUnavailableError."""
        with self._lock:
            self._take()
            if self._held and not self._thread.is_alive():
                self._thread.start()
            return self._held

    def draw(self) -> int | None:
        """Draw the number of a new run; None if the lease is lost.

        Raises RedisUnavailableError.
        """
        with self._lock:
            # The lease may have lapsed while Redis, or this process, was away.
            self._take()
            drawn = self._lease.draw(self._me.driver) if self._held else None
            if drawn is None:
                self._drop()
            return drawn

    def attend(self, run: str, topology: Topology) -> None:
        """Have spout workers send to this run from now on.

        If Redis does not answer, the next renewal tells them.
        """
        self._say(
            replace(
                self._idle,
                run=run,
                shape=shape_of(topology),
                parallelism=topology.parallelism,
            )
        )

    def attend_none(self, trouble: str = "") -> None:
        """Have spout workers send to no run from now on; otherwise as ``attend``.

        ``trouble`` is the reason, which monitors show.
        """
        self._say(replace(self._idle, trouble=trouble))

    def close(self) -> None:
        """Give the lease up. Idempotent."""
        with self._lock, suppress(RedisUnavailableError):
            self._closed.set()
            self._drop()
            self._lease.leave(self._me.driver)

    def _say(self, me: Holder) -> None:
        with self._lock, suppress(RedisUnavailableError):
            if self._held:
                self._me = me
                self._take()

    def _take(self) -> None:
        if self._closed.is_set() or not self._lease.take(self._me):
            self._drop()
        else:
            self._held = True

    def _drop(self) -> None:
        self._held = False
        self._me = self._idle

    def _renew(self) -> None:
        while not self._closed.wait(_RENEW_S):
            with self._lock:
                if not self._held:
                    continue
                try:
                    self._take()
                except AckerError as error:
                    # Errors that need an operator are raised on the driver's own thread.
                    log.debug("the lease is not renewed: %s", error, extra={"event": "redis_away"})
