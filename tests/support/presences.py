"""The seats of a topology, in memory and in Redis, for tests that let time pass."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tiercel.acker.redis.clients import connect
from tiercel.workers.control.presence import Attendant, Seat
from tiercel.workers.control.redis_control import RedisPresences


@contextmanager
def renewed(*renewals: Callable[[], object]) -> Iterator[None]:
    """Renew seats as processes do that live: a command takes seconds on a busy machine."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.5):
            for renewal in renewals:
                renewal()

    for renewal in renewals:
        renewal()
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class MemoryPresences:
    """``RedisPresences`` within one process, the oracle of the contract's suite."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._taken: dict[str, tuple[Attendant, float]] = {}
        self._drawn = 0

    def take(self, seat: Seat, attendant: Attendant, *, by_force: bool = False) -> bool:
        with self._lock:
            found = self._found(seat)
            if found is not None and found.name != attendant.name and not by_force:
                return False
            self._taken[seat.name] = attendant, self._clock() + seat.lasts.total_seconds()
            return True

    def leave(self, seat: Seat, name: str) -> None:
        with self._lock:
            if self._has(seat, name):
                del self._taken[seat.name]

    def look(self, seats: Sequence[Seat]) -> list[Attendant | None]:
        with self._lock:
            return [self._found(seat) for seat in seats]

    def draw_run(self, seat: Seat, name: str) -> int | None:
        with self._lock:
            if not self._has(seat, name):
                return None
            self._drawn += 1
            return self._drawn

    def lose(self) -> None:
        """Forget all attendants, like a Redis that restarts empty."""
        with self._lock:
            self._taken.clear()

    def close(self) -> None:
        pass

    def _has(self, seat: Seat, name: str) -> bool:
        found = self._found(seat)
        return found is not None and found.name == name

    def _found(self, seat: Seat) -> Attendant | None:
        """Return the current attendant. The caller holds the lock."""
        attendant, until = self._taken.get(seat.name, (None, 0.0))
        return attendant if self._clock() < until else None


class InMemory:
    """``presences`` within one process."""

    def __init__(self) -> None:
        self._now = 0.0
        self._presences = MemoryPresences(lambda: self._now)

    def presences(self) -> MemoryPresences:
        return self._presences

    def expire(self, seconds: float) -> None:
        self._now += seconds

    def lose(self) -> None:
        self._presences.lose()


# A second of a test's time in Redis, where real time passes too: a command takes seconds on a busy
# machine, and the driver's seat lapses after three.
_REDIS_SECONDS = 100


class _Stretched(RedisPresences):
    """``RedisPresences`` on the clock of ``InRedis``."""

    def take(self, seat: Seat, attendant: Attendant, *, by_force: bool = False) -> bool:
        stretched = Seat(seat.name, seat.lasts * _REDIS_SECONDS)
        return super().take(stretched, attendant, by_force=by_force)


class InRedis:
    """``presences``, with a separate client for each process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.topology = f"presence-{uuid.uuid4().hex}"
        self.client = connect(url)

    def presences(self) -> RedisPresences:
        return _Stretched(self.url, self.topology)

    def expire(self, seconds: float) -> None:
        """Let this time pass for the seats."""
        for key in self._keys():
            left_ms = self.client.pttl(key) - round(seconds * _REDIS_SECONDS * 1000)
            self.client.pexpire(key, left_ms)  # 0 or less expires at once

    def lose(self) -> None:
        self.client.delete(*self._keys())

    def _keys(self) -> list[bytes]:
        return list(self.client.scan_iter(f"tiercel:{{{self.topology}}}:present:*"))
