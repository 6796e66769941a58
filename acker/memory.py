"""The ledger in memory: the twin that suites and property tests measure Redis against."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from tiercel.acker.effects import Effect, LocalEffect
from tiercel.acker.inbox.contract import number_of_run
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import (
    LIFETIMES,
    REASON_LENGTH,
    Applied,
    Census,
    Failure,
    Ledger,
    Outcomes,
    Reply,
    Token,
    Updates,
    conflict_of,
    joined,
)

# Bytes per root in Redis.
_ROOT_BYTES = 27

# Ended runs that are remembered.
_REMEMBERED = 64


@dataclass(slots=True)
class _Tree:
    owner: int
    ack_val: int
    expires: float


class MemoryLedger(Ledger):
    """``Ledger`` within one process; thread-safe."""

    def __init__(self, spec: LedgerSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._spec = spec
        self._lifetime = (
            spec.message_timeout.total_seconds() * LIFETIMES
            if spec.message_timeout
            else float("inf")
        )
        self._clock = clock
        self._changed = threading.Condition()
        self._trees: dict[int, _Tree] = {}
        self._steps = _Steps()
        self._completed_at_once: set[tuple[int, int]] = set()
        self._feeds: dict[int, MemoryFeed] = {}

    def registering(
        self, owner: int, roots: Sequence[int], ack_vals: Sequence[int]
    ) -> Sequence[Effect[bool]]:
        return [LocalEffect(lambda: not self.register(owner, roots, ack_vals))]

    def register(self, owner: int, roots: Sequence[int], ack_vals: Sequence[int]) -> list[int]:
        self._check(owner)
        collided = []
        with self._changed:
            for root, ack_val in zip(roots, ack_vals, strict=True):
                tree = self._find(root)
                if tree is not None:
                    if (tree.owner, tree.ack_val) != (owner, ack_val):
                        collided.append(root)
                elif ack_val:
                    self._trees[root] = _Tree(owner, ack_val, self._clock() + self._lifetime)
                elif (owner, root) not in self._completed_at_once:
                    self._completed_at_once.add((owner, root))
                    self._tell(owner, Outcomes(acked=[root]))
        return collided

    def applying(
        self, token: Token, updates: Updates, failures: Sequence[Failure] = ()
    ) -> list[Effect[Reply]]:
        failing = {failure.root: failure for failure in reversed(failures)}
        xors: dict[int, int] = {}
        for root, xor in zip(updates.roots.tolist(), updates.xors.tolist(), strict=True):
            if root not in failing:
                xors[root] = xors.get(root, 0) ^ xor
        if not (xors or failing):
            return []
        return [LocalEffect(partial(self._apply, token, xors, failing))]

    def begin(self, run: str) -> bool:
        with self._changed:
            return self._steps.begin(run)

    def fence(self, run: str, task: int, attempt: int) -> bool:
        with self._changed:
            return self._steps.fence(run, task, attempt)

    def fail(self, failures: Sequence[Failure]) -> int:
        with self._changed:
            return self._fail({failure.root: failure for failure in reversed(failures)}.values())

    def release(self, roots: Sequence[int]) -> int:
        with self._changed:
            released = [(root, tree) for root in dict.fromkeys(roots) if (tree := self._take(root))]
            for root, tree in released:
                self._tell(tree.owner, Outcomes(released=[root]))
            return len(released)

    def reset_timeout(self, roots: Sequence[int], *, waiting: bool = False) -> None:
        with self._changed:
            for root in dict.fromkeys(roots):
                if tree := self._find(root):
                    tree.expires = self._clock() + self._lifetime
                    told = Outcomes(waiting=[root]) if waiting else Outcomes(reset=[root])
                    self._tell(tree.owner, told)

    def forget(self, roots: Sequence[int]) -> None:
        with self._changed:
            for root in roots:
                self._take(root)

    def census(self) -> Census:
        with self._changed:
            pending = sum(self._find(root) is not None for root in list(self._trees))
            feeds = self._feeds.values()
            now = self._clock()
            return Census(
                pending=pending,
                memory_bytes=_ROOT_BYTES * pending,
                feed_entries=sum(len(feed.arrived) for feed in feeds),
                feed_lag_s=max(
                    [0.0, *(now - feed.waiting_since for feed in feeds if feed.arrived)]
                ),
            )

    def feed(self, owner: int) -> MemoryFeed:
        self._check(owner)
        with self._changed:
            self._feeds[owner] = MemoryFeed(self._changed)
            return self._feeds[owner]

    def lose(self) -> None:
        """Forget everything, as a server that restarts empty does, and tell the feeds."""
        with self._changed:
            self._trees.clear()
            self._steps = _Steps()
            for owner in self._feeds:
                self._tell(owner, Outcomes(ledger_lost=True))

    def close(self) -> None:
        pass

    def _apply(self, token: Token, xors: dict[int, int], failing: dict[int, Failure]) -> Reply:
        with self._changed:
            applied = self._steps.judge(token, (frozenset(xors.items()), frozenset(failing)))
            if applied is Applied.FRESH:
                completed, late = self._update(xors)
                failed = self._fail(failing.values())
                late += len(failing) - failed
                return Reply(applied=applied, completed=completed, failed=failed, late=late)
            if applied is Applied.CONFLICTING:
                failed = self._fail([conflict_of(root) for root in sorted({*xors, *failing})])
                return Reply(applied=applied, failed=failed, late=len(xors) + len(failing) - failed)
            return Reply(applied=applied)

    def _update(self, xors: dict[int, int]) -> tuple[int, int]:
        completed = late = 0
        for root, xor in sorted(xors.items()):
            tree = self._find(root)
            if tree is None:
                late += 1
                continue
            tree.ack_val ^= xor
            if not tree.ack_val:
                completed += 1
                self._take(root)
                self._tell(tree.owner, Outcomes(acked=[root]))
        return completed, late

    def _fail(self, failures: Iterable[Failure]) -> int:
        failed = 0
        for failure in failures:
            if tree := self._take(failure.root):
                failed += 1
                self._tell(
                    tree.owner,
                    Outcomes(failed=[replace(failure, reason=failure.reason[:REASON_LENGTH])]),
                )
        return failed

    def _find(self, root: int) -> _Tree | None:
        tree = self._trees.get(root)
        if tree is not None and tree.expires <= self._clock():
            del self._trees[root]
            return None
        return tree

    def _take(self, root: int) -> _Tree | None:
        tree = self._find(root)
        self._trees.pop(root, None)
        return tree

    def _tell(self, owner: int, outcomes: Outcomes) -> None:
        if owner in self._feeds:
            feed = self._feeds[owner]
            if not feed.arrived:
                feed.waiting_since = self._clock()
            feed.arrived.append(outcomes)
            self._changed.notify_all()

    def _check(self, owner: int) -> None:
        if not 1 <= owner <= self._spec.owners:
            raise ValueError(f"owner {owner} is not one of 1 to {self._spec.owners}")


class MemoryFeed:
    """``OutcomeFeed`` of a ``MemoryLedger``, which appends to ``arrived`` under ``changed``."""

    def __init__(self, changed: threading.Condition) -> None:
        self.arrived: list[Outcomes] = []
        # Time at which the first outcome arrived.
        self.waiting_since = 0.0
        self._changed = changed
        self._closed = False

    def read(self, timeout: timedelta) -> Outcomes:
        with self._changed:
            self._changed.wait_for(lambda: self.arrived or self._closed, timeout.total_seconds())
            arrived = self.arrived
            self.arrived = []
        return joined(arrived)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(slots=True)
class _Known:
    """State of one task."""

    # The newest attempt.
    attempt: int
    # The last step that was applied; -1: none.
    step: int = -1
    # The work of that step.
    work: object = None


class _Steps:
    """Remembers the last step that each task applied, and checks tokens by the ledger's contract.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._run: str | None = None
        self._over: list[str] = []
        self._known: dict[tuple[str, int], _Known] = {}

    def judge(self, token: Token, work: object) -> Applied:
        """Judge the work of a step, and remember it. Only FRESH work is to be applied."""
        if self._run not in (None, token.run):
            return Applied.STALE
        known = self._known.setdefault((token.run, token.task), _Known(token.attempt))
        if token.attempt < known.attempt or token.step < known.step:
            return Applied.STALE
        known.attempt = token.attempt
        if token.step == known.step:
            return Applied.REPEATED if work == known.work else Applied.CONFLICTING
        known.step = token.step
        known.work = work
        return Applied.FRESH

    def begin(self, run: str) -> bool:
        """Make ``run`` the current one; False if it is over."""
        if run == self._run:
            return True
        if run in self._over or number_of_run(self._run or "") > number_of_run(run):
            return False
        if self._run is not None:
            self._over = [self._run, *self._over][:_REMEMBERED]
        self._run = run
        self._known = {key: known for key, known in self._known.items() if key[0] == run}
        return True

    def fence(self, run: str, task: int, attempt: int) -> bool:
        """Refuse older attempts at the task; False if this one is refused itself."""
        if self._run not in (None, run):
            return False
        known = self._known.setdefault((run, task), _Known(attempt))
        known.attempt = max(attempt, known.attempt)
        return attempt == known.attempt
