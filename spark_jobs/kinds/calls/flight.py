"""The flight of one bolt task: its waiting tuples, running calls and ended calls.

A ``FlightGate`` may hold a tuple back although a place is free. The flight asks the gate about the
waiting tuples, in the order of arrival, whenever ended calls were handed out, tuples arrive, or
``next_at`` is reached. A tuple that is held back takes no place, and the flight still asks about
the tuples behind it. Ticks bypass the gate.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from tiercel.acker.inbox.chunk import PARCEL_BYTES
from tiercel.spark_jobs.kinds.calls.call import Call, Caller, Execute

# The number is bounded because the flight asks the gate about each tuple whenever calls have ended.
MOST_HELD_BACK = 2_000
_IMPATIENT_S = 1.0


class Flight:
    """The calls of one bolt task. Only ``wake`` may be called by other threads."""

    def __init__(self, caller: Caller, places: int, gate: FlightGate | None = None) -> None:
        """Run at most ``places`` calls at once."""
        self._caller = caller
        self._places = places
        self._gate = gate
        self._waiting: deque[Call] = deque()
        # The caller's threads append to this queue.
        self._ended: deque[Call] = deque()
        # Number of calls that have begun and were not handed out.
        self._begun = 0
        self._numbers = 0
        # Number of waiting tuples that the gate holds back.
        self.held_back = 0
        # The gate's ``next_at`` when it was asked.
        self._again_at: float | None = None
        self.changed = threading.Event()

    @property
    def waiting(self) -> int:
        """Number of tuples that have not begun."""
        return len(self._waiting)

    @property
    def queued(self) -> int:
        """Number of waiting tuples that the gate has not held back."""
        return len(self._waiting) - self.held_back

    @property
    def full(self) -> bool:
        """True if the gate holds back the maximum number of tuples."""
        return self.held_back >= MOST_HELD_BACK

    @property
    def stands_still(self) -> bool:
        """True if no call is running and the gate holds back all waiting tuples."""
        return not self._begun and 0 < self.held_back == len(self._waiting)

    @property
    def under_way(self) -> int:
        """Number of calls that have begun and not ended."""
        return self._begun - len(self._ended)

    @property
    def has_ended(self) -> bool:
        """True if there are calls to hand out."""
        return bool(self._ended)

    @property
    def idle(self) -> bool:
        """True if there are neither calls nor waiting tuples."""
        return not self._begun and not self._waiting

    @property
    def next_at(self) -> float | None:
        """Time on the caller's clock at which to ask the gate again."""
        return None if self._gate is None else self._gate.next_at

    def number(self, call: Call) -> None:
        """Number a call in the order of arrival."""
        self._numbers += 1
        call.number = self._numbers

    def add(self, call: Call) -> None:
        """Queue a call for a place."""
        if not call.number:
            self.number(call)
        self._waiting.append(call)

    def refuse(self, call: Call) -> None:
        """End a call without beginning it; its ``error`` says why."""
        if not call.number:
            self.number(call)
        call.ended = True
        self._begun += 1
        self._end(call)

    def start(self, execute: Execute) -> None:
        """Begin the calls that have a place and pass the gate."""
        room = self._places - self.under_way
        if room <= 0 or not self._waiting or self._knows_answers:
            return
        beginning = self._beginning(room)
        if beginning:
            self._begun += len(beginning)
            self._caller.start(execute, beginning, self._end)

    @property
    def _knows_answers(self) -> bool:
        """True if the gate holds back all waiting tuples, and would answer the same now."""
        at = self._again_at
        return self.queued <= 0 and (at is None or self._caller.time() < at)

    def pause(self, seconds: float) -> None:
        """Wait until a call ends or the task is woken, for at most ``seconds``."""
        self._caller.pause(self, seconds)
        self.changed.clear()

    def wake(self) -> None:
        """End a ``pause``. Thread-safe."""
        self.changed.set()

    def take_ended(self) -> list[Call]:
        """Return the ended calls in the order in which their tuples arrived.

        If the output of all ended calls is large, returns only the calls that ended first.
        """
        calls: list[Call] = []
        size = 0
        while self._ended and size < PARCEL_BYTES:
            calls.append(self._ended.popleft())
            size += calls[-1].size
        self._begun -= len(calls)
        if self._gate is not None and calls:
            self.ask_again()
            for call in calls:
                if not call.tup.is_tick:
                    self._gate.over(call)
        return sorted(calls, key=lambda call: call.number)

    def finish(self, execute: Execute) -> list[Call]:
        """Run all waiting calls to their end and return them."""
        calls: list[Call] = []
        while not self.idle:
            self.start(execute)
            if not self.has_ended:
                self.pause(_IMPATIENT_S)
            calls += self.take_ended()
        return sorted(calls, key=lambda call: call.number)

    def ask_again(self) -> None:
        """Ask the gate again about tuples that it held back, although no call has ended."""
        self.held_back = 0

    def _beginning(self, room: int) -> list[Call]:
        gate = self._gate
        if gate is not None:
            gate.look(self._waiting)
        beginning: list[Call] = []
        passed_over: list[Call] = []
        while self._waiting and len(beginning) < room:
            call = self._waiting.popleft()
            if gate is None or call.tup.is_tick:
                beginning.append(call)
            elif gate.may_begin(call):
                gate.began(call)
                beginning.append(call)
            else:
                gate.passed_over(call)
                passed_over.append(call)
        self._waiting.extendleft(reversed(passed_over))
        self.held_back = len(passed_over)
        self._again_at = self.next_at if passed_over else None
        return beginning

    def _end(self, call: Call) -> None:
        self._ended.append(call)
        self.changed.set()


class FlightGate(Protocol):
    """Decides which tuples of one bolt task may begin. The task's thread only."""

    @property
    def next_at(self) -> float | None:
        """Time on the flight's clock at which to ask again even if nothing else happens."""

    def look(self, waiting: Sequence[Call]) -> None:
        """Begin a round: ``waiting`` is checked from the oldest on, until no place is left."""

    def may_begin(self, call: Call) -> bool:
        """Return True if the tuple may begin now."""

    def began(self, call: Call) -> None:
        """Note that the call has begun."""

    def passed_over(self, call: Call) -> None:
        """Note that the call is held back."""

    def over(self, call: Call) -> None:
        """Note that the call has ended, perhaps with an error; its step is not committed yet."""
