"""The health of a topology: everything that is wrong with it, from its orders and its figures.

The page, ``tiercel top``, ``tiercel status``, ``/health`` and ``/metrics`` all show these findings.
Pure, but for ``HealthMemory``, which remembers since when a finding stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime, timedelta
from operator import itemgetter

from tiercel.acker.metrics.contract import RETRY_LATER, WINDOWS_CLOSED
from tiercel.queues.nouns import counted
from tiercel.workers.control.contract import State
from tiercel.workers.monitoring.findings import (
    UNKNOWN_HEALTH,
    Finding,
    FindingKind,
    Grade,
    Health,
    ServerProblems,
)
from tiercel.workers.monitoring.overview import NOT_RUNNING, Overview
from tiercel.workers.monitoring.rows import REPORT_S, BoltRow, Load
from tiercel.workers.monitoring.tables import (
    count,
    duration,
    queued,
    seconds,
    span,
    tasks_named,
    tuples_in,
    waiting_in_words,
    working,
)

# Batches fill sooner: if a tuple waits longer, its bolt is behind.
_LONG_WAIT_S = 2.0
# Ready messages are a backlog if they take longer at the current rate.
_BACKLOG_S = 10.0
# Calls of a bolt that take longer are reported, if they take this many times longer than usual.
_LONG_CALL_S = 10.0
_LONGER = 3.0
# A topology that acks nothing for this long is in trouble, or for its message timeout if that is
# longer; counts by slots reach no farther back than the second number.
_QUIET_S = 60.0
_LONGEST_QUIET_S = 540.0
# This many different messages that fail, without a single ack, are an outage.
_OUTAGE = 5
# Share of the message timeout that one message in a hundred may take.
_NEAR = 0.8
# Above this share, on average, spouts do not try more messages at once (``Admission``).
_HELD_BACK = 0.4
# Fewer latencies have no meaningful p99.
_ENOUGH_LATENCIES = 20
# The log waits as long before it says that windows stand still.
_SILENT_S = 30.0
# A loss cannot be undone: after a day it is no news.
_LOSS_SHOWN_S = 86_400.0
# Findings that one reading may see by chance must last this long before they are reported.
_MOMENT_S = 1.0
_RECONNECT_S = 10.0
# The reason of a tuple that a bolt postponed, as ``RetryLater`` formats it.
_POSTPONED = re.compile(r"(?:\w+\[\d+\]: )?(?:flush: )?\w+: again after [\d.e+]+ s")


class HealthMemory:
    """Since when each finding of one topology stands, for one reader that looks again and again."""

    def __init__(self) -> None:
        # When each finding was first seen or began, and True if it did not stand before that.
        self._since: dict[tuple[FindingKind, str | None, str | None], tuple[datetime, bool]] = {}
        self._has_seen = False

    def judge(self, seen: Overview | None, problems: ServerProblems, at: datetime) -> Health:
        """Return the health ``at`` this time, which must not go back.

        A finding of the first reading has a time only if the figures tell it.
        """
        known = self._since
        self._since = {}
        findings = []
        for finding in findings_of(seen, problems):
            key = (finding.kind, finding.component, finding.queue)
            began = at - timedelta(seconds=finding.age_s)
            first, is_known = known.get(key, (began, self._has_seen))
            since = min(first, began)
            is_known = is_known or finding.age_s > 0
            self._since[key] = since, is_known
            if at - since >= timedelta(seconds=finding.lasts_s):
                findings.append(replace(finding, since=since if is_known else None))
        self._has_seen = self._has_seen or (seen is not None and problems.redis is None)
        return graded(seen, findings)


def findings_of(seen: Overview | None, problems: ServerProblems) -> Iterator[Finding]:
    """Find everything that is wrong.

    While a server does not answer, its last figures say nothing about now, and are not judged.
    """
    yield from _servers(problems)
    if seen is None or problems.redis is not None:
        return
    if problems.rabbitmq is not None:
        seen = replace(seen, queues=())
    if not seen.running:
        if seen.ordered is State.ACTIVE:
            yield Finding(
                kind=FindingKind.NOTHING_RUNS,
                reason=(
                    "nothing runs: it is ordered to be active, and has neither a driver nor a "
                    f"spout worker; start it, or tiercel kill {seen.name} if it is to stay down"
                ),
            )
    else:
        for find in (_paused, _missing, _stalled, _standing, _late):
            yield from find(seen)
        for find in (_busy, _awaited, _failing, _held):
            yield from find(seen)
    yield from _left(seen)


def graded(seen: Overview | None, found: Sequence[Finding]) -> Health:
    """Return the health of a topology with these findings."""
    findings = tuple(sorted(found, key=lambda each: each.level is not Grade.ILL))
    if findings and findings[0].level is Grade.ILL:
        return Health(grade=Grade.ILL, badge="in trouble", findings=findings)
    if seen is None:
        return replace(UNKNOWN_HEALTH, findings=findings)
    if not seen.running:
        return Health(grade=Grade.RESTING, badge=NOT_RUNNING, findings=findings)
    if seen.state == State.DEACTIVATED.value:
        return Health(grade=Grade.RESTING, badge="deactivated", findings=findings)
    if findings:
        only_paused = all(each.kind is FindingKind.BOLT_PAUSED for each in findings)
        badge = "paused" if only_paused else "strained"
        return Health(grade=Grade.STRAINED, badge=badge, findings=findings)
    return Health(grade=Grade.WELL, badge="well")


def _servers(problems: ServerProblems) -> Iterator[Finding]:
    if problems.redis is not None:
        kind = FindingKind.UNREADABLE if problems.unreadable else FindingKind.REDIS_AWAY
        yield Finding(kind=kind, reason=problems.redis)
    if problems.full is not None:
        yield Finding(kind=FindingKind.REDIS_FULL, reason=problems.full)
    if problems.rabbitmq is not None:
        yield Finding(kind=FindingKind.RABBITMQ_AWAY, reason=problems.rabbitmq)
    if problems.blocked is not None:
        yield Finding(kind=FindingKind.RABBITMQ_BLOCKED, reason=problems.blocked)


def _paused(seen: Overview) -> Iterator[Finding]:
    """Find the bolts that an operator has paused."""
    for bolt in seen.bolts:
        if bolt.paused_since is not None:
            yield Finding(
                kind=FindingKind.BOLT_PAUSED,
                reason=(
                    f"is paused by order{_and_queued(bolt)}; tiercel resume {seen.name} "
                    f"--bolt {bolt.name}"
                ),
                component=bolt.name,
                age_s=max(0.0, (seen.at - bolt.paused_since).total_seconds()),
            )


def _ready(seen: Overview) -> int:
    """Return the number of messages that wait in the broker."""
    return sum(queue.ready for queue in seen.queues)


def _held_up(seen: Overview) -> set[str]:
    """Return the components whose tuples may wait for a paused bolt: it, and all before it."""
    return _with_sources(seen, {bolt.name for bolt in seen.bolts if bolt.paused})


def _with_sources(seen: Overview, components: AbstractSet[str]) -> set[str]:
    """Return these components, and all whose tuples lead to them."""
    found = set(components)
    size = -1
    while size != len(found):
        size = len(found)
        found |= {row.edge.source for row in seen.edges if row.edge.target in found}
    return found


def _missing(seen: Overview) -> Iterator[Finding]:
    """Find missing processes and consumers."""
    if not seen.driver:
        yield Finding(
            kind=FindingKind.NO_DRIVER,
            reason="there is no driver: no bolt works until one is started",
        )
    if seen.executor_problem:
        yield Finding(kind=FindingKind.NO_EXECUTOR, reason=seen.executor_problem)
    for spout in seen.spouts:
        if spout.missing:
            tasks = counted(spout.tasks, "task")
            yield Finding(
                kind=FindingKind.SPOUT_WITHOUT_WORKER,
                reason=f"has no worker for {count(spout.missing)} of {tasks}",
                component=spout.name,
            )
    for bolt in seen.bolts:
        if bolt.unattended and seen.driver:
            yield Finding(
                kind=FindingKind.TASK_WITHOUT_PROCESS,
                reason=f"has no process for task {tasks_named(bolt.unattended)}",
                component=bolt.name,
            )
    if seen.active and seen.driver and any(spout.running for spout in seen.spouts):
        for queue in seen.queues:
            if not queue.consumers:
                yield Finding(
                    kind=FindingKind.NO_CONSUMERS,
                    reason=f"queue {queue.name} has no consumer, although spout workers run",
                    queue=queue.name,
                    lasts_s=_RECONNECT_S,
                )


def _stalled(seen: Overview) -> Iterator[Finding]:
    """Find that nothing completes although there is work."""
    lately = seen.lately
    waiting = _ready(seen) + seen.own.pending + seen.own.in_back_off
    if not seen.active or not waiting or lately.acked or any(b.paused for b in seen.bolts):
        return
    failures = max(lately.failed, *(lately.of(bolt.name)["failed"] for bolt in seen.bolts), 0)
    if lately.failed_messages >= _OUTAGE:
        yield Finding(
            kind=FindingKind.ALL_FAIL,
            reason=(
                f"all messages fail: {count(failures)} failures of at least "
                f"{count(lately.failed_messages)} messages and not one ack in the last "
                f"{span(lately.seconds)}{_last_reason(seen)}"
            ),
            age_s=lately.failing_s,
        )
    # If only a few messages wait, and all of them have failed, then they are bad, not the topology.
    elif not waiting <= max(lately.failed_messages, seen.own.in_back_off) < _OUTAGE:
        yield from _nothing_acked(seen, waiting)


def _nothing_acked(seen: Overview, waiting: int) -> Iterator[Finding]:
    """Find that messages wait for longer than they may."""
    lately = seen.lately
    timeout_s = seen.in_flight_limit_s or _LONGEST_QUIET_S
    patience_s = min(max(_QUIET_S, timeout_s), _LONGEST_QUIET_S)
    # Before the first emission there was nothing to ack.
    quiet_s = lately.emitting_s if lately.emitted_before else lately.quiet_s
    if seen.driver_at is not None:
        quiet_s = min(quiet_s, (seen.at - seen.driver_at.since).total_seconds())
    works = any(call_s >= patience_s for bolt in seen.bolts for _, call_s in bolt.calls)
    refused = bool(_ready(seen)) and not lately.emitted
    if not refused:
        # A message is acked when its last window has closed.
        quiet_s -= max([0.0, *(row.oldest_s or 0.0 for row in seen.windows)])
    if quiet_s < patience_s or works:
        return
    if lately.emitted_before or refused:
        yield Finding(
            kind=FindingKind.NOTHING_ACKED,
            reason=(
                f"no message was acked for {span(quiet_s)}, and "
                f"{waiting_in_words(waiting, 'message')}{_last_reason(seen)}"
            ),
            # A spout takes ready messages within a moment, unless it can send nothing.
            age_s=quiet_s if lately.emitted_before else 0.0,
            lasts_s=0.0 if lately.emitted_before else _MOMENT_S,
        )


def _standing(seen: Overview) -> Iterator[Finding]:
    """Find windows that stand still because a spout can send nothing: event time follows tuples."""
    silent_s = {each.name: each.silent_s for each in seen.spouts if each.silent_s >= _SILENT_S}
    if not silent_s or not seen.active:
        return
    for row in seen.windows:
        # Without a watermark, the clock closes the windows.
        if not row.held or row.watermark is None or seen.lately.of(row.name)[WINDOWS_CLOSED]:
            continue
        if spouts := sorted(silent_s.keys() & _with_sources(seen, {row.name})):
            yield Finding(
                kind=FindingKind.WINDOWS_STAND,
                reason=(
                    f"holds {counted(row.held, 'tuple')} in windows that stand still, as "
                    f"{' and '.join(spouts)} can send nothing: it has all the messages that it may "
                    "hold (raise its prefetch, add spout workers, or make the windows shorter), or "
                    "no connection to RabbitMQ"
                ),
                component=row.name,
                age_s=max(silent_s[spout] for spout in spouts),
            )


def _late(seen: Overview) -> Iterator[Finding]:
    """Find messages and calls that take too long."""
    oldest_s = seen.own.oldest_pending_s
    limit_s = seen.in_flight_limit_s
    if 0 < limit_s < oldest_s:
        yield Finding(
            kind=FindingKind.OVERDUE,
            reason=(
                f"the oldest message has been in flight for {seconds(oldest_s)}; it times out "
                f"after {seconds(limit_s)}, unless a bolt that waits resets the timeout"
            ),
            age_s=oldest_s - limit_s,
        )
    yield from _near_timeout(seen)
    for bolt in seen.bolts:
        task, call_s = max(bolt.calls, key=itemgetter(1), default=(0, 0.0))
        if call_s > max(_LONG_CALL_S, _usually_at_most_s(bolt, limit_s)):
            yield Finding(
                kind=FindingKind.LONG_CALL,
                reason=f"has been in one call for {seconds(call_s)} in task {task}",
                component=bolt.name,
                age_s=call_s,
            )


def _usually_at_most_s(bolt: BoltRow, limit_s: float) -> float:
    """Return how long calls of a bolt may take; ``limit_s`` is how long a message may."""
    # While one call waits, others of its task begin and end: none of them fills the time.
    usual_ms = max(bolt.execute_ms or 0.0, bolt.process_ms or 0.0)
    return _LONGER * usual_ms / 1e3 if usual_ms else limit_s / 2


def _near_timeout(seen: Overview) -> Iterator[Finding]:
    """Find messages that come close to their timeout; messages that windows hold have none."""
    timeout_s, lately = seen.in_flight_limit_s, seen.lately
    if timeout_s <= 0 or seen.windows:
        return
    p99_ms = lately.p99_ms if lately.acked >= _ENOUGH_LATENCIES else None
    took_s = sum(lately.of(spout.name)["complete_us"] for spout in seen.spouts) / 1e6
    ready = _ready(seen)
    is_near = ready and took_s > _HELD_BACK * timeout_s * max(1, lately.acked)
    slow = max(seen.bolts, key=lambda bolt: bolt.process_ms or 0.0, default=None)
    if p99_ms is not None and p99_ms / 1000 > _NEAR * timeout_s:
        yield Finding(
            kind=FindingKind.NEAR_TIMEOUT,
            reason=(
                f"one message in a hundred takes longer than {duration(p99_ms)}, and times out "
                f"after {seconds(timeout_s)}"
            ),
        )
    elif is_near and slow and not slow.free_tasks_take and seen.acker.pending < slow.tasks > 1:
        yield Finding(
            kind=FindingKind.NEAR_TIMEOUT,
            reason=(
                f"a message takes {seconds(took_s / lately.acked)} on average, and times out after "
                f"{seconds(timeout_s)}; one task of {slow.name} may get several, so spouts emit "
                f"few, and {waiting_in_words(ready, 'message')}: raise message_timeout_secs"
            ),
        )


def _busy(seen: Overview) -> Iterator[Finding]:
    """Find the bottlenecks: bolts that are busy, and bolts that are behind."""
    held_up = _held_up(seen)
    ready = _ready(seen)
    for bolt in sorted(seen.bolts, key=lambda each: -each.queued.oldest_s):
        if bolt.name in held_up:
            continue
        # Long calls keep a task busy; that is no bottleneck while no other tuple waits.
        if bolt.load is Load.HOT and (bolt.queued.tuples or ready or not bolt.calls):
            yield Finding(
                kind=FindingKind.BOTTLENECK,
                reason=f"is the bottleneck: {working(bolt)}{_and_queued(bolt)}",
                component=bolt.name,
            )
        elif bolt.queued.oldest_s >= _LONG_WAIT_S:
            yield Finding(
                kind=FindingKind.BEHIND,
                reason=f"is behind{_and_queued(bolt)}",
                component=bolt.name,
                age_s=bolt.queued.oldest_s,
            )


def _awaited(seen: Overview) -> Iterator[Finding]:
    """Find the bottleneck if no bolt is busy: the bolt with most of the time until the ack."""
    ready = _ready(seen)
    if ready < _BACKLOG_S * seen.flow.acked_a_second or not seen.flow.acked_a_second:
        return
    if not seen.bolts or any(bolt.load is Load.HOT or bolt.paused for bolt in seen.bolts):
        return
    found = [(seen.lately.of(bolt.name), bolt.name) for bolt in seen.bolts]
    counts, slowest = max(found, key=lambda each: each[0]["process_ns"])
    if counts["process_ns"] < sum(each["process_ns"] for each, _ in found) / 2:
        return
    if counts["acked"] and counts["executed"]:
        process_ms = counts["process_ns"] / 1e6 / counts["acked"]
        execute_ms = counts["execute_ns"] / 1e6 / counts["executed"]
        yield Finding(
            kind=FindingKind.BOTTLENECK,
            reason=(
                f"is the bottleneck: a tuple spends {duration(process_ms)} in it, but only "
                f"{duration(execute_ms)} working; {waiting_in_words(ready, 'message')} in "
                "the broker"
            ),
            component=slowest,
        )


def _and_queued(bolt: BoltRow) -> str:
    return f"; {some}" if (some := queued(bolt)) else ""


def _failing(seen: Overview) -> Iterator[Finding]:
    """Find tuples that bolts failed or postponed in the last minute."""
    lately = seen.lately
    for bolt in seen.bolts:
        counts = lately.of(bolt.name)
        postponed = counts[RETRY_LATER]
        failed = counts["failed"] - postponed
        if failed > 0:
            yield Finding(
                kind=FindingKind.FAILING,
                reason=(
                    f"fails {tuples_in(failed, lately.seconds)}"
                    f"{_last_reason(seen, bolt.name, postponed=False)}"
                ),
                component=bolt.name,
            )
        if postponed:
            yield Finding(
                kind=FindingKind.RETRY_LATER,
                reason=(
                    f"postpones {tuples_in(postponed, lately.seconds)} with "
                    f"RetryLater{_last_reason(seen, bolt.name, postponed=True)}"
                ),
                component=bolt.name,
            )


def _held(seen: Overview) -> Iterator[Finding]:
    """Find messages that timed out in the last minute, and messages in back-off."""
    for spout in seen.spouts:
        if timeouts := seen.lately.of(spout.name)["timeout"]:
            messages = counted(timeouts, "message")
            yield Finding(
                kind=FindingKind.TIMEOUTS,
                reason=f"had {messages} time out in the last {span(seen.lately.seconds)}",
                component=spout.name,
            )
        if spout.in_back_off:
            messages = counted(spout.in_back_off, "failed message")
            yield Finding(
                kind=FindingKind.IN_BACK_OFF,
                reason=f"holds {messages} until the back-off is over",
                component=spout.name,
            )


def _last_reason(
    seen: Overview, component: str | None = None, *, postponed: bool | None = None
) -> str:
    """Return ``, last: …`` with the newest reason within the span of the counts; without one, an
    empty text.
    """
    oldest = seen.at - timedelta(seconds=seen.lately.seconds + REPORT_S)
    for error in seen.errors:
        if (
            error.at >= oldest
            and component in (None, error.component)
            and postponed in (None, _POSTPONED.match(error.message) is not None)
        ):
            return f", last: {error.message}"
    return ""


def _left(seen: Overview) -> Iterator[Finding]:
    """Find dead letters, and lost states."""
    for bolt in seen.bolts:
        if bolt.state_lost_at is None:
            continue
        age_s = (seen.at - bolt.state_lost_at).total_seconds()
        if age_s < _LOSS_SHOWN_S:
            yield Finding(
                kind=FindingKind.STATES_LOST,
                reason="has begun with an empty state, because Redis lost it",
                component=bolt.name,
                age_s=age_s,
            )
    for queue in seen.queues:
        if queue.dead_lettered:
            some = counted(queue.dead_lettered, "dead letter")
            yield Finding(
                kind=FindingKind.DEAD_LETTERS,
                reason=f"{some} of queue {queue.name}",
                queue=queue.name,
            )
