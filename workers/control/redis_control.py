"""Control and presence in Redis.

Keys: one for the state, one for the last kill, two each for orders to rebalance and to pause bolts,
one per seat, one for the newest run's number.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tiercel.acker.layout import paused_key, seat_key, silent_key, topology_prefix
from tiercel.acker.redis.scripts import RedisServer, nothing, script_source
from tiercel.workers.control.contract import (
    KILL_LASTS,
    NO_PAUSES,
    Attendant,
    Change,
    Pauses,
    Rebalance,
    Seat,
    State,
    Unreadable,
    number_of,
)

_PACKAGE = "tiercel.workers.control"
# The number of the newest run, in the keys of the topology.
RUN_KEY = "run"
_NO_RUN = b"0"
# A spout task notes each second that it can send nothing.
_SILENT_LASTS_MS = 5_000
_MILLISECOND = timedelta(milliseconds=1)
# Actions, for errors.
_CONTROL = "control the topology"
_READ = "read the topology's state"
_PAUSED = "look which bolts are paused"
_PRESENT = "say which processes run the topology"


class RedisControl:
    """The orders to one topology. Thread-safe; connects on its first call.

    Best effort: readers keep the last order while Redis is away. Each call is one round trip and
    safe to repeat. Raises RedisUnavailableError, RedisRefusedError.
    """

    def __init__(self, redis_url: str, topology: str) -> None:
        """``redis_url`` may hold a password."""
        self._topology = topology
        prefix = topology_prefix(topology)
        self._key = prefix + "control"
        self._kill_key = f"{self._key}:killed"
        self._run_key = prefix + RUN_KEY
        self._rebalances = [f"{self._key}:rebalances", f"{self._key}:parallelism"]
        self._pauses = [f"{self._key}:pauses", paused_key(topology)]
        self._server = RedisServer(redis_url, prefix)
        self._note, self._noted = (
            self._server.script(script_source(name, package=_PACKAGE))
            for name in ("note_bolts", "noted_bolts")
        )
        self._unreadable = Unreadable("run all parts of the topology with one version of tiercel")

    def order(self, state: State) -> None:
        """Order a state.

        KILLED lasts a minute; other states last until the next order, or until Redis is emptied.
        """
        lasts = ("PX", KILL_LASTS // _MILLISECOND) if state is State.KILLED else ()
        self._server.perform(
            [
                self._server.command("SET", self._key, state.value, *lasts, verb=_CONTROL),
                self._server.command("DEL", self._kill_key, verb=_CONTROL),
            ]
        )

    def note_kill(self) -> None:
        """Note that ``tiercel kill`` has ended the topology; lasts until the next run or order."""
        run: bytes | None = self._server.command("GET", self._run_key, verb=_CONTROL).perform()
        self._server.command("SET", self._kill_key, run or _NO_RUN, verb=_CONTROL).perform()

    def was_killed(self) -> bool:
        """Return True if ``tiercel kill`` ended the topology and no run has begun since."""
        words = ("MGET", self._kill_key, self._run_key)
        killed, run = self._server.command(*words, read=tuple, verb=_READ).perform()
        return killed is not None and killed == (run or _NO_RUN)

    def state(self) -> State | None:
        """Return the last order; None if there was none or it is lost."""
        return self._server.command("GET", self._key, read=self._state, verb=_READ).perform()

    def ask(self, known: State) -> State | None:
        """Return the result of ``state``; if it is None, make ``known`` the state.

        So a Redis that was emptied learns the state from the spout tasks.
        """
        # NX: never overwrite an operator's order given at the same moment.
        words = ("SET", self._key, known.value, "NX", "GET")
        return self._server.command(*words, read=self._state, verb=_READ).perform()

    def rebalance(self, change: Change) -> None:
        """Order a new run with these numbers of tasks, on the slots that Spark has then.

        Bolts not named keep the number ordered before; None cancels it. A bolt need not exist in
        the topology. Atomic; a repeat gives the same order again.
        """
        pairs = [part for bolt, number in change.items() for part in (bolt, number or "")]
        self._note(self._rebalances, pairs, nothing, _CONTROL).perform()

    def rebalanced(self, known: Rebalance) -> Rebalance:
        """Return the last order to rebalance; if there is none, make ``known`` the last order.

        So a Redis that was emptied learns the order from the driver.
        """
        pairs = [part for pair in known.parallelism.items() for part in pair]
        verb = "look for an order to rebalance"
        count, *found = self._noted(self._rebalances, [known.number, *pairs], list, verb).perform()
        numbers = {}
        for bolt, number in zip(found[::2], found[1::2], strict=True):
            try:
                numbers[bolt.decode()] = number_of(number.decode())
            except ValueError as error:
                self._unreadable.pass_over(
                    f"the number of tasks of {bolt!r:.50} ({self._rebalances[1]})", number, error
                )
        # An unreadable count, from another version, counts as no order.
        return Rebalance(number=int(count) if count.isdigit() else 0, parallelism=numbers)

    def pause(self, bolt: str) -> None:
        """Order the tasks of a bolt to take nothing new; lasts until ``resume``.

        The bolt need not exist in the topology. A repeat pauses it again, from now on.
        """
        words = [bolt, int(time.time() * 1000)]
        self._note(self._pauses, words, nothing, _CONTROL).perform()

    def resume(self, bolt: str) -> None:
        """Take back the order to pause a bolt, if there is one. Idempotent."""
        self._note(self._pauses, [bolt, ""], nothing, _CONTROL).perform()

    def paused(self) -> frozenset[str]:
        """Return the paused bolts; some may not exist in the topology."""
        words = ("HKEYS", self._pauses[1])
        found = self._server.command(*words, read=list, verb=_PAUSED).perform()
        return frozenset(name.decode() for name in found)

    def note_silent(self, spout: str) -> None:
        """Note, for a few seconds, that a task of a spout can send nothing; a note that still
        stands keeps its time.
        """
        key, verb = silent_key(self._topology, spout), "note that a spout can send nothing"
        words = ("SET", key, int(time.time() * 1000), "NX", "PX", _SILENT_LASTS_MS)
        self._server.perform(
            [
                self._server.command(*words, verb=verb),
                self._server.command("PEXPIRE", key, _SILENT_LASTS_MS, verb=verb),
            ]
        )

    def silent_since(self, spouts: Sequence[str]) -> dict[str, datetime]:
        """Return the spouts that can send nothing, each with the time of its first note, aware,
        UTC.
        """
        if not spouts:
            return {}
        words = ("MGET", *(silent_key(self._topology, spout) for spout in spouts))
        verb = "look which spouts can send nothing"
        found = self._server.command(*words, read=list, verb=verb).perform()
        # An older version notes no time.
        return {
            spout: datetime.fromtimestamp(int(since_ms) / 1000, UTC)
            for spout, since_ms in zip(spouts, found, strict=True)
            if since_ms is not None and since_ms.isdigit()
        }

    def paused_since(self) -> dict[str, datetime]:
        """Return the paused bolts with the times of the orders, aware, UTC."""
        since_ms = self.pauses(NO_PAUSES).since_ms
        return {bolt: datetime.fromtimestamp(ms / 1000, UTC) for bolt, ms in since_ms.items()}

    def pauses(self, known: Pauses) -> Pauses:
        """Return the paused bolts; if there was no order, make ``known`` the order.

        So a Redis that was emptied learns the paused bolts from the driver.
        """
        pairs: list[str | int] = [part for pair in known.since_ms.items() for part in pair]
        noted = self._noted(self._pauses, [known.number, *pairs], list, _PAUSED)
        count, *found = noted.perform()
        since = zip(found[::2], found[1::2], strict=True)
        return Pauses(
            number=int(count) if count.isdigit() else 0,
            since_ms={bolt.decode(): int(ms) if ms.isdigit() else 0 for bolt, ms in since},
        )

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._server.close()

    def _state(self, found: bytes | None) -> State | None:
        if found is None:
            return None
        try:
            return State(found.decode())
        except ValueError as error:
            self._unreadable.pass_over(f"the order {self._key}", found, error)
            return None


class RedisPresences:
    """The seats of one topology. Thread-safe; connects on its first call.

    Each call is one round trip, atomic, and safe to repeat. Raises RedisUnavailableError,
    RedisRefusedError.

    A seat is lost if it is not renewed in time, or if Redis loses its memory. So two processes may
    for a moment believe that they hold the same seat; ``Lease`` and ``SpoutSeats`` are safe then.
    """

    def __init__(self, redis_url: str, topology: str) -> None:
        """``redis_url`` may hold a password."""
        self._topology = topology
        self._prefix = topology_prefix(topology)
        self._server = RedisServer(redis_url, self._prefix)
        names = ("take_seat", "leave_seat", "draw_run")
        self._take, self._leave, self._draw = (
            self._server.script(script_source(name, package=_PACKAGE)) for name in names
        )

    def take(self, seat: Seat, attendant: Attendant, *, by_force: bool = False) -> bool:
        """Take or renew the seat; False if another attendant has it.

        ``by_force`` takes it from that attendant. Works even if the server is out of memory.
        """
        lasts_ms = int(seat.lasts.total_seconds() * 1000)
        words: list[str | int] = [attendant.name, " ".join(attendant), lasts_ms, int(by_force)]
        return self._take([self.key(seat)], words, bool, _PRESENT).perform()

    def leave(self, seat: Seat, name: str) -> None:
        """Give up the seat; leave another attendant's seat alone. Idempotent."""
        self._leave([self.key(seat)], [name], nothing, _PRESENT).perform()

    def look(self, seats: Sequence[Seat]) -> list[Attendant | None]:
        """Return the attendant of each seat; None for a free seat."""
        if not seats:
            return []
        words = ("MGET", *map(self.key, seats))
        verb = "look which processes run the topology"
        found = self._server.command(*words, read=list, verb=verb).perform()
        return [None if value is None else _attendant(value) for value in found]

    def draw_run(self, seat: Seat, name: str) -> int | None:
        """Draw the number of a new run; None unless ``name`` has the seat.

        The number is higher than all earlier ones, and below 2**53. A repeat draws another.
        """
        keys = [self.key(seat), self._prefix + RUN_KEY]
        return self._draw(keys, [name], _number, "begin a run").perform()

    def newest_run(self) -> int | None:
        """Return the number of the newest run, its beginning in microseconds since the epoch; None
        if there was none.
        """
        words = ("GET", self._prefix + RUN_KEY)
        return self._server.command(*words, read=_number, verb="look up the newest run").perform()

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._server.close()

    def key(self, seat: Seat) -> str:
        """Return the key of a seat."""
        return seat_key(self._topology, seat.name)


def _number(reply: bytes | None) -> int | None:
    return int(reply) if reply is not None and reply.isdigit() else None


def _attendant(value: bytes) -> Attendant:
    name, note = [*value.decode(errors="replace").split(maxsplit=1), "", ""][:2]
    return Attendant(name, note)
