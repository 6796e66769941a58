"""The rows of bolts and of their tasks, worked out of counters and inboxes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiercel.acker.inbox.records import InboxFigures
from tiercel.acker.inbox.rules import line_of
from tiercel.acker.metrics.contract import ErrorReport
from tiercel.acker.metrics.windows import total_of
from tiercel.spark_jobs.whereabouts import Whereabouts, unpacked
from tiercel.workers.control.graph import Component
from tiercel.workers.control.presence import UNATTENDED_S
from tiercel.workers.monitoring.raw import Raw

# Counts per thousand seconds, and nanoseconds.
_PER_SECOND = 1e3
_SHARE = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRow:
    """One bolt task: its inbox and its process now, its steps in a window."""

    component: str
    task: int
    # Tuples in its inbox, with those of the step that is at work.
    waiting: int
    waiting_bytes: int
    # Seconds that the oldest of them has been there.
    oldest_s: float
    executed: int
    # All time in ``execute`` and ``flush``, in seconds.
    execute_s: float
    # Share of the window that it spent in ``execute``: execute latency x executed /
    # window, as in Storm.
    capacity: float
    # The same of the last ten seconds.
    busy: float
    steps: int
    # Now.
    steps_a_second: float
    # All steps together, in seconds.
    step_s: float
    # Mean time of a step, its commit included; None if there was none.
    step_ms: float | None
    # Attempts at the task in this run: one, and one more per restart.
    attempts: int
    # A process said within the last seconds that it runs the task.
    attended: bool
    # Seconds since one said so; None: never in this run.
    seen_s: float | None
    # Seconds for which it has been in one call of the bolt; None: in none that lasts.
    doing_s: float | None = None
    # Of its process; None: it has none, or did not say.
    place: Whereabouts | None = None

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return max(0, self.attempts - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoltRow:
    """One bolt in a window; what waits, and who attends it, is of now."""

    name: str
    tasks: int
    emitted: int
    transferred: int
    executed: int
    acked: int
    failed: int
    # Mean time in ``execute`` and ``flush`` per tuple; None if nothing was executed.
    execute_ms: float | None
    # Mean time from the beginning of ``execute`` to the ack; None if nothing was acked.
    process_ms: float | None
    # All of it together, in seconds.
    execute_s: float
    process_s: float
    # Of its busiest task: near 1, the bolt needs more tasks.
    capacity: float
    # Of its busiest task, in the last ten seconds.
    busy: float
    # Tuples in the inboxes of its tasks, and in its line.
    waiting: int
    # Seconds that the oldest of them has been there.
    oldest_s: float
    # Now.
    steps_a_second: float
    # Mean time of a step, its commit included; None if there was none.
    step_ms: float | None
    # Attempts in this run after the first one of each task.
    restarts: int
    # Tasks that no process runs.
    unattended: tuple[int, ...]
    last_error: ErrorReport | None


def task_rows(component: Component, raw: Raw) -> tuple[TaskRow, ...]:
    """The tasks of a bolt, in their order."""
    counts = raw.counted.counts.get(component.name, {})
    rates = raw.rates.get(component.name, {})
    return tuple(
        _task(component.name, task, counts.get(task, {}), rates.get(task, {}), raw)
        for task in component.tasks
    )


def bolt_row(
    component: Component, raw: Raw, rows: Sequence[TaskRow], last_error: ErrorReport | None
) -> BoltRow:
    """A bolt, whose tasks are in ``rows``."""
    counts = total_of(raw.counted.counts, component.name)
    line = raw.inboxes.get(line_of(component.tasks))
    return BoltRow(
        name=component.name,
        tasks=len(component.tasks),
        emitted=counts["emitted"],
        transferred=counts["transferred"],
        executed=counts["executed"],
        acked=counts["acked"],
        failed=counts["failed"],
        execute_ms=mean(counts["execute_ns"] / 1e6, counts["executed"]),
        process_ms=mean(counts["process_ns"] / 1e6, counts["acked"]),
        execute_s=counts["execute_ns"] / 1e9,
        process_s=counts["process_ns"] / 1e9,
        capacity=max((row.capacity for row in rows), default=0.0),
        busy=max((row.busy for row in rows), default=0.0),
        waiting=sum(row.waiting for row in rows) + (line.tuples if line else 0),
        oldest_s=max([line.oldest_s if line else 0.0, *(row.oldest_s for row in rows)]),
        steps_a_second=sum(row.steps_a_second for row in rows),
        step_ms=mean(counts["step_ns"] / 1e6, counts["steps"]),
        restarts=sum(row.restarts for row in rows),
        unattended=tuple(row.task for row in rows if not row.attended),
        last_error=last_error,
    )


def mean(total: float, count: int) -> float | None:
    """None of nothing."""
    return total / count if count else None


def _task(
    component: str, task: int, counts: Mapping[str, int], rates: Mapping[str, int], raw: Raw
) -> TaskRow:
    inbox = raw.inboxes.get(task)
    execute_s = counts.get("execute_ns", 0) / 1e9
    steps = counts.get("steps", 0)
    step_s = counts.get("step_ns", 0) / 1e9
    return TaskRow(
        component=component,
        task=task,
        waiting=inbox.tuples if inbox else 0,
        waiting_bytes=inbox.bytes if inbox else 0,
        oldest_s=inbox.oldest_s if inbox else 0.0,
        executed=counts.get("executed", 0),
        execute_s=execute_s,
        # The first report of a process is of the second before it, in which the
        # window had not begun.
        capacity=min(1.0, execute_s / raw.counted.seconds) if raw.counted.seconds else 0.0,
        busy=min(1.0, rates.get("execute_ns", 0) / _SHARE),
        steps=steps,
        steps_a_second=rates.get("steps", 0) / _PER_SECOND,
        step_s=step_s,
        step_ms=mean(step_s * 1e3, steps),
        attempts=inbox.attempts if inbox else 0,
        attended=attended(inbox),
        seen_s=inbox.seen_s if inbox else None,
        doing_s=inbox.doing_s if inbox and attended(inbox) else None,
        place=unpacked(inbox.place) if inbox and attended(inbox) else None,
    )


def attended(inbox: InboxFigures | None) -> bool:
    """Tell whether a process runs the task.

    As the driver judges it, which begins a new run where a task stays unattended.
    """
    return (
        inbox is not None
        and inbox.adopted
        and inbox.seen_s is not None
        and inbox.seen_s <= UNATTENDED_S
    )
