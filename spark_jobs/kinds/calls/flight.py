"""Which tuples of one bolt task wait for a place, are under way, and have ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from tiercel.acker.inbox.chunk import PARCEL_BYTES
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.calls.caller import Caller, Execute
from tiercel.spark_jobs.kinds.calls.gates import FlightGate

# Each is asked about whenever a call has ended.
MOST_HELD_BACK = 2_000
_IMPATIENT_S = 1.0


class Flight:
    """The calls of one bolt task. The task's thread only, but ``wake``."""

    def __init__(
        self,
        caller: Caller,
        places: int,
        gates: Sequence[FlightGate] = (),
    ) -> None:
        """At most ``places`` calls are under way at once."""
        self._caller = caller
        self._places = places
        self._gates = gates
        self._waiting: deque[Call] = deque()
        # Appended to by the caller's threads.
        self._ended: deque[Call] = deque()
        # Calls that have begun and were not handed out.
        self._begun = 0
        self._numbers = 0
        # Tuples that gates have refused.
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
        """True if gates hold back as many as there may be."""
        return self.held_back >= MOST_HELD_BACK

    @property
    def stands_still(self) -> bool:
        """True if gates hold back all that there is."""
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
        """Time on the caller's clock at which a gate is to be asked again."""
        moments = [gate.next_at for gate in self._gates]
        return min((moment for moment in moments if moment is not None), default=None)

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
        for call in calls:
            for gate in self._gates_of(call):
                gate.over(call)
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
        """Gates may let begin what they held back, though no call has ended since."""
        self.held_back = 0

    def withdraw(self, which: Callable[[Call], bool]) -> None:
        """Take tuples out that wait."""
        self._waiting = deque(call for call in self._waiting if not which(call))
        self.held_back = min(self.held_back, len(self._waiting))

    def close(self) -> None:
        """Let go of what waits and what is under way."""
        for gate in self._gates:
            gate.close()

    def _beginning(self, room: int) -> list[Call]:
        for gate in self._gates:
            gate.look(self._waiting)
        beginning: list[Call] = []
        passed_over: list[Call] = []
        while self._waiting and len(beginning) < room:
            call = self._waiting.popleft()
            gates = self._gates_of(call)
            may = all(gate.may_begin(call) for gate in gates)
            for gate in gates:
                (gate.began if may else gate.passed_over)(call)
            (beginning if may else passed_over).append(call)
        self._waiting.extendleft(reversed(passed_over))
        self.held_back = len(passed_over)
        return beginning

    def _gates_of(self, call: Call) -> Sequence[FlightGate]:
        return () if call.tup.is_tick else self._gates

    def _end(self, call: Call) -> None:
        self._ended.append(call)
        self.changed.set()
