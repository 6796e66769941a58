"""The health of a topology: its grade, and its problems, worst first. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from tiercel.queues.nouns import counted
from tiercel.workers.control.contract import State
from tiercel.workers.monitoring.overview import NOT_RUNNING, Overview
from tiercel.workers.monitoring.rows import BoltRow, Load
from tiercel.workers.monitoring.tables import count, duration, per_second, seconds, tasks_named

# Batches fill sooner: if a tuple waits longer, its bolt is behind.
_LONG_WAIT_S = 2.0
# Ready messages are a backlog if they take longer at the current rate.
_BACKLOG_S = 10.0
# Longer calls of a bolt are reported.
_LONG_CALL_S = 10.0


class Grade(enum.Enum):
    """Grade of a topology."""

    WELL = "well"
    # It works, but something needs attention.
    STRAINED = "strained"
    # Processes are missing, or messages time out.
    ILL = "ill"
    # It is deactivated, or not running.
    RESTING = "resting"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hurt:
    """One problem."""

    grade: Grade
    says: str
    # The component that has it; None: the topology as a whole.
    component: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The health of a topology."""

    grade: Grade
    # The badge: one or two words.
    badge: str
    # Worst first.
    hurts: tuple[Hurt, ...]


def health_of(seen: Overview) -> Health:
    """Judge the health of a topology."""
    if not seen.running:
        return Health(grade=Grade.RESTING, badge=NOT_RUNNING, hurts=tuple(_left(seen)))
    found = [
        *_missing(seen),
        *_late(seen),
        *_busy(seen),
        *_awaited(seen),
        *_failing(seen),
        *_left(seen),
    ]
    hurts = tuple(sorted(found, key=lambda hurt: hurt.grade is not Grade.ILL))
    if any(hurt.grade is Grade.ILL for hurt in hurts):
        return Health(grade=Grade.ILL, badge="in trouble", hurts=hurts)
    if seen.state == State.DEACTIVATED.value:
        return Health(grade=Grade.RESTING, badge="deactivated", hurts=hurts)
    if hurts:
        return Health(grade=Grade.STRAINED, badge="strained", hurts=hurts)
    return Health(grade=Grade.WELL, badge="well", hurts=())


def _missing(seen: Overview) -> Iterator[Hurt]:
    """Find missing processes."""
    if not seen.driver:
        yield _ill("there is no driver: no bolt works until one is started")
    if seen.executor_problem:
        yield _ill(seen.executor_problem)
    for spout in seen.spouts:
        if spout.missing:
            yield _ill(
                f"has no worker for {count(spout.missing)} of {counted(spout.tasks, 'task')}",
                spout.name,
            )
    for bolt in seen.bolts:
        if bolt.unattended and seen.driver:
            yield _ill(f"has no process for task {tasks_named(bolt.unattended)}", bolt.name)


def _late(seen: Overview) -> Iterator[Hurt]:
    """Find messages and calls that take too long."""
    oldest_s = seen.own.oldest_pending_s
    if 0 < seen.message_timeout_s < oldest_s:
        yield _ill(
            f"the oldest message has been in flight for {seconds(oldest_s)}, and times out after "
            f"{seconds(seen.message_timeout_s)}"
        )
    for bolt in seen.bolts:
        task, call_s = max(bolt.calls, key=itemgetter(1), default=(0, 0.0))
        if call_s > _LONG_CALL_S:
            yield _strained(f"has been in one call for {seconds(call_s)} in task {task}", bolt.name)


def _busy(seen: Overview) -> Iterator[Hurt]:
    """Find the bottlenecks: bolts that are busy, and bolts that are behind."""
    for bolt in sorted(seen.bolts, key=lambda each: -each.oldest_s):
        if bolt.load is Load.HOT:
            yield _strained(
                f"is the bottleneck: {busiest(bolt)} works {bolt.busy:.0%} of the time"
                f"{_queued(bolt)}",
                bolt.name,
            )
        elif bolt.oldest_s >= _LONG_WAIT_S and bolt.waiting > bolt.retrying:
            yield _strained(f"is behind{_queued(bolt)}", bolt.name)


def _awaited(seen: Overview) -> Iterator[Hurt]:
    """Find the bottleneck if no bolt is busy: the bolt with most of the time until the ack."""
    ready = sum(queue.ready for queue in seen.queues)
    if ready < _BACKLOG_S * seen.flow.acked_a_second or not seen.flow.acked_a_second:
        return
    if any(bolt.load is Load.HOT for bolt in seen.bolts):
        return
    slowest = max(seen.bolts, key=lambda bolt: bolt.process_s, default=None)
    if slowest is None or slowest.process_s < sum(bolt.process_s for bolt in seen.bolts) / 2:
        return
    if slowest.process_ms is not None and slowest.execute_ms is not None:
        yield _strained(
            f"is the bottleneck: a tuple spends {duration(slowest.process_ms)} in it, but only "
            f"{duration(slowest.execute_ms)} working; {counted(ready, 'message')} "
            f"{_wait(ready)} in the broker",
            slowest.name,
        )


def busiest(bolt: BoltRow) -> str:
    """Name the task that the bolt's load figures describe."""
    return "its task" if bolt.tasks == 1 else f"the busiest of its {counted(bolt.tasks, 'task')}"


def _queued(bolt: BoltRow) -> str:
    if not bolt.waiting:
        return ""
    some = f"{counted(bolt.waiting, 'tuple')} {_wait(bolt.waiting)}"
    return f"; {some} for it, the oldest for {seconds(bolt.oldest_s)}"


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _failing(seen: Overview) -> Iterator[Hurt]:
    """Find bolts that fail tuples, and spouts with timeouts."""
    for bolt in seen.bolts:
        rate = seen.flow.of(bolt.name).failed_a_second
        if rate:
            last = next((each for each in seen.faults if each.component == bolt.name), None)
            reason = f", last: {last.reason}" if last else ""
            yield _strained(f"fails {per_second(rate)} tuples per second{reason}", bolt.name)
    for spout in seen.spouts:
        if spout.timeouts:
            yield _strained(f"had {counted(spout.timeouts, 'message')} time out", spout.name)


def _left(seen: Overview) -> Iterator[Hurt]:
    """Find dead letters."""
    for queue in seen.queues:
        if queue.dead_lettered:
            some = counted(queue.dead_lettered, "dead letter")
            yield _strained(f"{some} of queue {queue.name}")


def _ill(says: str, component: str | None = None) -> Hurt:
    return Hurt(grade=Grade.ILL, says=says, component=component)


def _strained(says: str, component: str | None = None) -> Hurt:
    return Hurt(grade=Grade.STRAINED, says=says, component=component)
