"""Tuples that wait, are under way or have ended; and a gate that holds some back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tiercel.spark_jobs.bolts.streams import SYSTEM, TICK
from tiercel.spark_jobs.bolts.tuples import Origin, Tuple
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.calls.flight import Flight

ORIGIN = Origin("spout", "default", 1, pa.schema([("key", pa.string())]))


class ByHand:
    """A caller whose calls end when the test ends them."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.now = 0.0
        self._ended: Callable[[Call], None] = lambda call: None
        self._calls: dict[Any, Call] = {}

    def time(self) -> float:
        return self.now

    def recorder(self, call: Call | None) -> Any:
        raise NotImplementedError

    def start(self, execute: Any, calls: Sequence[Call], ended: Callable[[Call], None]) -> None:
        self._ended = ended
        for call in calls:
            self.begun.append(call.tup.row)
            self._calls[call.tup.row] = call

    def end(self, *rows: int) -> None:
        for row in rows:
            self._ended(self._calls.pop(row))

    def pause(self, calls: Any, seconds: float) -> None:
        """End all calls under way, the last one first."""
        self.end(*reversed(self._calls))

    def do(self, method: Any, *arguments: object) -> None:
        raise NotImplementedError

    def hanging(self) -> Call | None:
        return None

    def oldest(self) -> Call | None:
        return None

    def cancel(self) -> bool:
        return True

    def close(self) -> None:
        pass


class OneOfAKey:
    """Lets one tuple of a key through at a time; the value is the key."""

    next_at = None

    def __init__(self) -> None:
        self.busy: set[Any] = set()
        self.waits: set[Any] = set()
        self.looked: list[list[int]] = []

    def look(self, waiting: Sequence[Call]) -> None:
        self.waits.clear()
        self.looked.append([call.tup.row for call in waiting])

    def may_begin(self, call: Call) -> bool:
        return call.tup.values[0] not in self.busy | self.waits

    def began(self, call: Call) -> None:
        self.busy.add(call.tup.values[0])

    def passed_over(self, call: Call) -> None:
        self.waits.add(call.tup.values[0])

    def over(self, call: Call) -> None:
        self.busy.remove(call.tup.values[0])


class Closed:
    """Opens at the given time."""

    def __init__(self, next_at: float) -> None:
        self.next_at: float | None = next_at

    def look(self, waiting: Sequence[Call]) -> None:
        pass

    def may_begin(self, call: Call) -> bool:
        return self.next_at is None

    def began(self, call: Call) -> None:
        pass

    def passed_over(self, call: Call) -> None:
        pass

    def over(self, call: Call) -> None:
        pass


def execute(tup: Any, collector: Any) -> None:
    pass


def flight_of(keys: str, places: int, gate: Any = None) -> tuple[Flight, ByHand]:
    """Return a flight with waiting tuples: rows count from 0, values are the letters."""
    caller = ByHand()
    flight = Flight(caller, places, gate)
    for row, key in enumerate(keys):
        flight.add(Call(tup=Tuple([key], ORIGIN, row)))
    return flight, caller


def rows_of(calls: Sequence[Call]) -> list[int]:
    return [call.tup.row for call in calls]


def test_tuples_begin_in_order_as_far_as_there_are_places() -> None:
    flight, caller = flight_of("aaaaa", 3)
    flight.start(execute)
    assert (caller.begun, flight.waiting, flight.under_way) == ([0, 1, 2], 2, 3)
    caller.end(1)
    assert flight.has_ended
    flight.start(execute)
    assert caller.begun == [0, 1, 2, 3], "a call that has ended has left its place"
    caller.end(3, 0)
    assert rows_of(flight.take_ended()) == [0, 1, 3], "in the order of arrival"
    assert (flight.waiting, flight.under_way, flight.has_ended) == (1, 1, False)


def test_a_gate_holds_back_what_it_must_and_the_others_go_on() -> None:
    gate = OneOfAKey()
    flight, caller = flight_of("aabacb", 3, gate)
    flight.start(execute)
    assert caller.begun == [0, 2, 4], "what waits at a gate holds no place"
    caller.end(2)
    flight.start(execute)
    assert caller.begun == [0, 2, 4], "the gate has not been told that it is over"
    assert rows_of(flight.take_ended()) == [2]
    flight.start(execute)
    assert caller.begun == [0, 2, 4, 5]
    caller.end(0)
    flight.take_ended()
    flight.start(execute)
    assert caller.begun == [0, 2, 4, 5, 1], "the older one of its key"
    assert flight.waiting == 1
    assert gate.looked == [[0, 1, 2, 3, 4, 5], [1, 3, 5], [1, 3, 5], [1, 3]]


def test_a_gate_is_not_asked_again_before_something_has_changed() -> None:
    """Each question about 2,000 tuples that wait for their key takes some milliseconds."""
    gate = OneOfAKey()
    flight, caller = flight_of("aaab", 3, gate)
    for _ in range(3):
        flight.start(execute)
    caller.end(3)
    flight.start(execute)
    assert gate.looked == [[0, 1, 2, 3]]
    assert rows_of(flight.take_ended()) == [3]
    flight.start(execute)
    flight.add(Call(tup=Tuple(["c"], ORIGIN, 4)))
    flight.start(execute)
    flight.ask_again()
    flight.start(execute)
    assert gate.looked[1:] == [[1, 2], [1, 2, 4], [1, 2]]
    assert caller.begun == [0, 3, 4]


def test_a_gate_is_asked_again_at_its_time() -> None:
    closed = Closed(7.0)
    flight, caller = flight_of("ab", 3, closed)
    flight.start(execute)
    assert (caller.begun, flight.next_at, flight.stands_still) == ([], 7.0, True)
    caller.now = 7.0
    closed.next_at = None
    flight.start(execute)
    assert (caller.begun, flight.next_at) == ([0, 1], None)


def test_finish_goes_on_until_nothing_waits() -> None:
    flight, caller = flight_of("aaab", 2, OneOfAKey())
    assert rows_of(flight.finish(execute)) == [0, 1, 2, 3]
    assert flight.idle
    assert caller.begun == [0, 3, 1, 2]


def test_a_pause_ends_when_the_task_is_woken() -> None:
    class Real(ByHand):
        def pause(self, calls: Any, seconds: float) -> None:
            assert calls.changed.wait(seconds)

    flight = Flight(Real(), 1)
    threading.Timer(0.01, flight.wake).start()
    flight.pause(10)
    assert not flight.changed.is_set()


def test_a_tick_passes_the_gate() -> None:
    flight, caller = flight_of("a", 3, Closed(7.0))
    tick = Origin(SYSTEM, TICK, 0, pa.schema([("rate_secs", pa.float64())]))
    flight.add(Call(tup=Tuple([1.0], tick, 99)))
    flight.start(execute)
    assert caller.begun == [99]
    caller.end(99)
    assert rows_of(flight.take_ended()) == [99]
