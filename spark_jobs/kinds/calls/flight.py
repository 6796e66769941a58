"""The flight of one bolt task: which tuples wait for a place, are under way, and have ended.

A ``FlightGate`` makes a tuple wait although there is a place for it. A flight asks its gate about
the tuples that wait, in the order of their arrival, whenever a call has ended, tuples have come, or
``next_at`` is reached. A tuple that the gate holds back holds no place, and the tuples behind it
are asked about nevertheless. Ticks pass the gate.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from tiercel.acker.inbox.chunk import PARCEL_BYTES
from tiercel.spark_jobs.kinds.calls.call import Call, Caller, Execute

# Each is asked about whenever a call has ended.
MOST_HELD_BACK = 2_000
_IMPATIENT_S = 1.0


class Flight:
    """The calls of one bolt task. The task's thread only, but ``wake``."""

    def __init__(self, caller: Caller, places: int, gate: FlightGate | None = None) -> None:
        """At most ``places`` calls are under way at once."""
        self._caller = caller
        self._places = places
        self._gate = gate
        self._waiting: deque[Call] = deque()
        # Appended to by the caller's threads.
        self._ended: deque[Call] = deque()
        # Calls that have begun and were not handed out.
        self._begun = 0
        self._numbers = 0
        # Tuples that the gate has refused.
        self.held_back = 0
        self.changed = threading.Event()

    @property
    def waiting(self) -> int:
        """Number of tuples that have not begun."""
        return len(self._waiting)

    @property
    def queued(self) -> int:
        """Number of tuples that wait for nothing but a place, as far as is known."""
        return len(self._waiting) - self.held_back

    @property
    def full(self) -> bool:
        """True if the gate holds back as many as there may be."""
        return self.held_back >= MOST_HELD_BACK

    @property
    def stands_still(self) -> bool:
        """True if the gate holds back all that there is."""
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
        """True if there is neither a call nor a tuple that waits."""
        return not self._begun and not self._waiting

    @property
    def next_at(self) -> float | None:
        """Time on the caller's clock at which the gate is to be asked again."""
        return None if self._gate is None else self._gate.next_at

    def number(self, call: Call) -> None:
        """Give a tuple its place in the order of arrival."""
        self._numbers += 1
        call.number = self._numbers

    def add(self, call: Call) -> None:
        """Let a tuple wait for its place."""
        if not call.number:
            self.number(call)
        self._waiting.append(call)

    def refuse(self, call: Call) -> None:
        """Hand a tuple out that never begins: its ``error`` says why."""
        if not call.number:
            self.number(call)
        call.ended = True
        self._begun += 1
        self._end(call)

    def start(self, execute: Execute) -> None:
        """Begin what may begin."""
        room = self._places - self.under_way
        if room <= 0 or not self._waiting:
            return
        beginning = self._beginning(room)
        if beginning:
            self._begun += len(beginning)
            self._caller.start(execute, beginning, self._end)

    def pause(self, seconds: float) -> None:
        """Wait until a call ends or the task is woken, at most so long."""
        self._caller.pause(self, seconds)
        self.changed.clear()

    def wake(self) -> None:
        """End a ``pause``. Thread-safe."""
        self.changed.set()

    def take_ended(self) -> list[Call]:
        """Hand out the calls that have ended, in the order in which their tuples arrived; where
        their output is large, the first ones.
        """
        calls: list[Call] = []
        size = 0
        while self._ended and size < PARCEL_BYTES:
            calls.append(self._ended.popleft())
            size += calls[-1].size
        self._begun -= len(calls)
        if self._gate is not None:
            for call in calls:
                if not call.tup.is_tick:
                    self._gate.over(call)
        return sorted(calls, key=lambda call: call.number)

    def finish(self, execute: Execute) -> list[Call]:
        """Begin all that waits, wait until it has ended, and hand it out."""
        calls: list[Call] = []
        while not self.idle:
            self.start(execute)
            if not self.has_ended:
                self.pause(_IMPATIENT_S)
            calls += self.take_ended()
        return sorted(calls, key=lambda call: call.number)

    def ask_again(self) -> None:
        """The gate may let tuples begin that it held back, though no call has ended since."""
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
        return beginning

    def _end(self, call: Call) -> None:
        self._ended.append(call)
        self.changed.set()


class FlightGate(Protocol):
    """Of one bolt task. One thread only: the task's."""

    @property
    def next_at(self) -> float | None:
        """Time on the flight's clock at which to ask again, though nothing else has happened."""
        ...

    def look(self, waiting: Sequence[Call]) -> None:
        """These wait, the oldest first, and are asked about in turn, until no place is left."""
        ...

    def may_begin(self, call: Call) -> bool:
        """Return True if the tuple may begin now."""
        ...

    def began(self, call: Call) -> None:
        """It has begun."""
        ...

    def passed_over(self, call: Call) -> None:
        """It waits on."""
        ...

    def over(self, call: Call) -> None:
        """It has ended, well or badly: ``call.error``. Its step is not committed yet."""
        ...
