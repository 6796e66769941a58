"""Random senders, attempts, runs and repeats, on inboxes and on a line shared by two tasks: Redis
answers every call as memory does.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.inboxes import FOUR, ONE, TWO, parcel, take
from tiercel.acker.ids import line_of
from tiercel.acker.inbox.contract import (
    Bounds,
    Covered,
    Entry,
    Holdings,
    OpenWindows,
    Rest,
    Sender,
    StaleAttemptError,
)
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.redis.scripts import RedisServers

BOUNDS = Bounds(tuples=8, bytes=60)
# Two tasks that share a line, on one server.
SHARING = FOUR[:2]
LINE = line_of(SHARING)
TASKS = [ONE, TWO, *SHARING]
TARGETS = [*TASKS, LINE]
A_TASK = st.sampled_from(TASKS)
A_TARGET = st.sampled_from(TARGETS)
WINDOWS = st.builds(
    OpenWindows,
    number=st.integers(0, 10**6),
    tuples=st.integers(0, 10**6),
    watermark_us=st.none() | st.integers(-(2**62), 2**62),
)
HELD = st.builds(Holdings, retrying=st.integers(0, 9), windows=st.none() | WINDOWS)


@dataclass
class Attempt:
    """One attempt in both backends."""

    run: str
    task: int
    number: int
    inboxes: tuple[Any, Any]
    taken: list[str] = field(default_factory=list)
    # Entries as in memory: claimed, and not given back.
    claimed: list[Entry] = field(default_factory=list)


class Twins(RuleBasedStateMachine):
    """Makes each call in memory and in Redis, often twice there, and compares the results."""

    url: str

    @initialize(servers=st.sampled_from([1, 2]))
    def start(self, servers):
        urls = [self.url, f"{self.url.rpartition('/')[0]}/1"][:servers]
        self.oracle = MemoryInboxes(BOUNDS)
        self.redis = RedisInboxes(RedisServers(urls), f"twins-{uuid.uuid4().hex}", BOUNDS)
        # Positions of each task, from memory to Redis.
        self.positions: dict[int, dict[str, str]] = defaultdict(dict)
        self.runs: list[str] = []
        self.attempts: list[Attempt] = []
        self.numbers: dict[tuple[int, str], int] = {}
        self.chunks = 0
        # Claimed entries of which a part was given back, which another attempt at the task knows.
        self.gone_in_part: set[tuple[int, str]] = set()
        self.adopt(TARGETS, again=False)

    def teardown(self):
        if hasattr(self, "redis"):
            self.redis.close()

    # -- calls -------------------------------------------------------------------------------------

    # Mostly all tasks, in the same run: without a line nothing can be claimed.
    @rule(
        tasks=st.just(TARGETS) | st.lists(A_TARGET, unique=True, min_size=1),
        again=st.sampled_from([True, True, True, False]),
    )
    def adopt(self, tasks, again):
        if not again or not self.runs:
            self.runs.append(f"run {len(self.runs)}")
        self.both(lambda inboxes: inboxes.adopt(self.runs[-1], tasks))

    @rule(task=A_TASK, old=st.booleans())
    def open(self, task, old):
        run = self.runs[0 if old else -1]
        # Not repeated, because a repeat would draw another number.
        number = self.both(lambda inboxes: inboxes.draw(run, task), repeat=False)
        if isinstance(number, int):
            self.reopen(run, task, number)

    def reopen(self, run, task, number):
        line = LINE if task in SHARING else None
        opened = self.both(
            lambda inboxes: inboxes.open(run, task, number, line), compare=False, repeat=False
        )
        assert (opened[0] is StaleAttemptError) == (opened[1] is StaleAttemptError)
        if opened[0] is StaleAttemptError:
            return
        found = opened[0].opened
        positions = self.positions[task]
        assert (found.taken and positions[found.taken]) == opened[1].opened.taken
        assert {positions[at]: rows for at, rows in found.done.items()} == opened[1].opened.done
        assert self.covered_in_redis(task, found.sealed) == opened[1].opened.sealed
        assert (found.step, found.ticks) == (opened[1].opened.step, opened[1].opened.ticks)
        self.attempts.append(Attempt(run, task, number, opened))

    @rule(
        task=st.integers(50, 51),
        attempt=st.integers(1, 3),
        back=st.integers(0, 2),
        sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), min_size=1, max_size=3),
        to=st.lists(A_TARGET, unique=True, min_size=1),
        bounded=st.booleans(),
        old=st.booleans(),
        same=st.booleans(),
        part=st.integers(0, 2),
    )
    def append(self, task, attempt, back, sizes, to, bounded, old, same, part):
        run = self.runs[0 if old else -1]
        number = max(1, self.numbers.get((task, run), 0) + 1 - back)
        self.numbers[task, run] = max(number, self.numbers.get((task, run), 0))
        parcels = []
        for target in to:
            self.chunks += 1
            mark = 0 if same else self.chunks
            chunks = [b"%d %d " % (mark, at) + b"x" * size for at, (_, size) in enumerate(sizes)]
            parcels.append(
                parcel(
                    *chunks,
                    target=target,
                    tuples=[n for n, _ in sizes],
                    bounded=bounded,
                    part=part,
                )
            )
        sender = Sender(task=task, attempt=attempt)
        effects = [
            inboxes.append(run, sender, number, parcels) for inboxes in (self.oracle, self.redis)
        ]
        for pair in zip(*effects, strict=True):
            self.perform(pair)

    @rule(
        task=st.integers(50, 51),
        attempt=st.integers(1, 3),
        to=st.lists(A_TARGET, unique=True),
        old=st.booleans(),
    )
    def fence(self, task, attempt, to, old):
        run = self.runs[0 if old else -1]
        self.both(lambda inboxes: inboxes.fence(run, Sender(task=task, attempt=attempt), to))

    @precondition(lambda self: self.attempts)
    @rule(
        which=st.integers(0, 3),
        tuples=st.integers(1, 10),
        size=st.integers(1, 80),
        claims=st.integers(0, 6),
        more=st.integers(0, 4),
    )
    def take(self, which, tuples, size, claims, more):
        attempt = self.attempts[-1 - which % len(self.attempts)]
        # Not repeated, because a second call on one inbox object is a different call.
        found = self.compared(
            attempt, lambda inbox: take(inbox, tuples, size, claims=claims, more=more)
        )
        if found is not StaleAttemptError:
            attempt.taken += [entry.position for entry in found]
            attempt.claimed += [entry for entry in found if entry.first is not None]

    @rule(counts=st.lists(st.integers(0, 5), min_size=1, max_size=2), again=st.booleans())
    def append_to_line(self, counts, again):
        sizes = [(count, 3) for count in counts]
        back = 1 if again else 0
        self.append(50, 3, back, sizes, [LINE], bounded=False, old=False, same=again, part=0)

    @rule(task=st.sampled_from(SHARING), claims=st.integers(1, 6), more=st.integers(0, 4))
    def claim(self, task, claims, more):
        newest = next((one for one in reversed(self.attempts) if one.task == task), None)
        if newest is None or newest.run != self.runs[-1]:
            self.open(task, old=False)
        else:
            which = self.attempts[::-1].index(newest)
            self.take(which, tuples=10, size=80, claims=claims, more=more)

    @precondition(lambda self: any(attempt.claimed for attempt in self.attempts))
    @rule(data=st.data())
    def give_back(self, data):
        attempt = data.draw(st.sampled_from([one for one in self.attempts if one.claimed]))
        rests = []
        for entry in data.draw(
            st.lists(st.sampled_from(attempt.claimed), unique_by=lambda one: one.position)
        ):
            attempt.claimed.remove(entry)
            if (attempt.task, entry.position) not in self.gone_in_part:
                first = data.draw(st.integers(0, max(0, entry.tuples - 1)))
                done = bytes([0xFF << first & 0xFF]) if first else b""
                rests.append(Rest(position=entry.position, first=first, done=done))
        self.gone_in_part |= {(attempt.task, rest.position) for rest in rests if rest.done}
        positions = self.positions[attempt.task]
        oracle, redis = attempt.inboxes
        theirs = [replace(rest, position=positions[rest.position]) for rest in rests]
        self.perform((oracle.give_back(rests), redis.give_back(theirs)))

    @precondition(lambda self: self.attempts)
    @rule(which=st.integers(0, 3), data=st.data())
    def seal(self, which, data):
        attempt = self.attempts[-1 - which % len(self.attempts)]
        known = attempt.taken or sorted(self.positions[attempt.task])
        own = st.lists(st.sampled_from(known), unique=True) if known else st.just([])
        whole = data.draw(own)
        part = data.draw(own)
        covered = Covered(
            step=attempt.inboxes[0].opened.step + data.draw(st.integers(1, 4)),
            whole=tuple(whole),
            part={at: bytes([data.draw(st.integers(0, 255))]) for at in part if at not in whole},
            ticks=data.draw(st.integers(0, 9)),
            tuples=data.draw(st.integers(0, 5)),
            bytes=data.draw(st.integers(0, 30)),
        )
        oracle, redis = attempt.inboxes
        self.perform(
            (oracle.seal(covered), redis.seal(self.covered_in_redis(attempt.task, covered)))
        )

    @precondition(lambda self: self.attempts)
    @rule(which=st.integers(0, 3), step=st.integers(1, 4))
    def finish(self, which, step):
        attempt = self.attempts[-1 - which % len(self.attempts)]
        self.perform(
            [inbox.finish(attempt.inboxes[0].opened.step + step) for inbox in attempt.inboxes]
        )

    @precondition(lambda self: self.attempts)
    @rule(which=st.integers(0, 3), data=st.data())
    def read(self, which, data):
        attempt = self.attempts[-1 - which % len(self.attempts)]
        known = self.positions[attempt.task]
        wanted = data.draw(st.lists(st.sampled_from(sorted(known)))) if known else []
        pairs = zip(attempt.inboxes, (wanted, [known[at] for at in wanted]), strict=True)
        self.same(
            attempt.task,
            [self.outcome(lambda inbox=inbox, at=at: inbox.read(at)) for inbox, at in pairs],
        )

    @rule(old=st.booleans(), discarded=st.integers(0, 4))
    def drain(self, old, discarded):
        run = self.runs[0 if old else -1]
        found = [
            self.outcome(lambda inboxes=inboxes: inboxes.drain(run))
            for inboxes in (self.oracle, self.redis)
        ]
        if StaleAttemptError in found:
            assert found == [StaleAttemptError] * 2
            return
        assert [task for task, _ in found[0]] == [task for task, _ in found[1]]
        for (task, mine), (_, theirs) in zip(*found, strict=True):
            self.same(task, [mine, theirs])
            lists = [
                [entry.position for entry in entries[:discarded]] for entries in (mine, theirs)
            ]
            self.oracle.discard(run, task, lists[0])
            for _ in range(2):
                self.redis.discard(run, task, lists[1])

    @rule(
        attempts=st.dictionaries(A_TASK, st.integers(0, 6)),
        old=st.booleans(),
        held=st.none() | HELD,
    )
    def beat(self, attempts, old, held):
        told = None if held is None else dict.fromkeys(attempts, held)
        run = self.runs[0 if old else -1]
        self.both(lambda inboxes: inboxes.beat(run, attempts, {}, "", told))

    @invariant()
    def figures_agree(self):
        if not hasattr(self, "redis"):
            return
        mine, theirs = (
            {
                task: replace(found, oldest_s=0.0, seen_s=None if found.seen_s is None else 0.0)
                for task, found in inboxes.figures(TARGETS).items()
            }
            for inboxes in (self.oracle, self.redis)
        )
        assert mine == theirs

    # -- comparing ---------------------------------------------------------------------------------

    def outcome(self, call):
        try:
            return call()
        except (StaleAttemptError, ValueError) as error:
            return type(error)

    def both(self, call, *, repeat=True, compare=True):
        mine = self.outcome(lambda: call(self.oracle))
        theirs = [self.outcome(lambda: call(self.redis)) for _ in range(1 + repeat)]
        if not compare:
            return mine, theirs[0]
        assert theirs == [mine] * len(theirs)
        return mine

    def perform(self, pair):
        """Perform twice in Redis, as redis-py does when a reply is lost: the second reply is that
        of a repeat in memory.
        """
        mine = [self.outcome(pair[0].perform), self.outcome(pair[0].perform)]
        theirs = [self.outcome(pair[1].perform), self.outcome(pair[1].perform)]
        assert mine == theirs

    def compared(self, attempt, call):
        found = [self.outcome(lambda inbox=inbox: call(inbox)) for inbox in attempt.inboxes]
        self.same(attempt.task, found)
        return found[0]

    def same(self, task, found):
        """Compare entries, and map their positions to each other."""
        mine, theirs = found
        if StaleAttemptError in found:
            assert mine is theirs
            return
        shown = [[(e.payload, e.tuples, e.first) for e in entries] for entries in found]
        assert shown[0] == shown[1]
        for here, there in zip(mine, theirs, strict=True):
            assert self.positions[task].setdefault(here.position, there.position) == there.position

    def covered_in_redis(self, task, covered):
        if covered is None:
            return None
        positions = self.positions[task]
        return replace(
            covered,
            whole=tuple(positions[at] for at in covered.whole),
            part={positions[at]: rows for at, rows in covered.part.items()},
        )


def test_both_backends_answer_alike(redis_url):
    machine = type("OnThisServer", (Twins,), {"url": redis_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30, stateful_step_count=25, suppress_health_check=list(HealthCheck)
        ),
    )
