"""The bound on tuples in flight, with outages of every part, on simulated time: afterwards a
backlog leaves as fast as without an outage.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tiercel.acker.ledger import Failure, Outcomes
from tiercel.workers.spout.admission import UNPROVEN_BOUND, Admission, Crowd, Shape
from tiercel.workers.spout.outbox import Attendance
from tiercel.workers.spout.trees import Trees

TIMEOUT_S = 30.0
LOOP_S = 0.02
# Time after which a process has reported a call.
BEATS_S = 3.0
BACKLOG = 10_000
QUICK_S = 0.0002
# Seconds after which the spout notices that its driver is gone.
LEASE_S = 5.0
# Allowed cost of an outage: this multiple of the backlog's time without one, within this time after
# the first ack.
FACTOR = 1.25
WITHIN_S = 10.0


class Server:
    """A bolt task with its inbox of (root, number, seconds of work)."""

    def __init__(self):
        self.inbox = deque()
        self.free_at = 0.0
        # Roots received and not acked, as in a bolt that acks many at once.
        self.held = []


class World:
    """A queue, a spout with its trees and its bound, and bolt tasks that pull from a line, or each
    have an inbox that is fed in turn.

    Messages are (number, seconds of work); in flight they also have the epoch. A negative number
    always fails. A task acks ``at_once`` messages together.
    """

    @staticmethod
    def describe(msg_id):
        return {"message_id": str(msg_id)}

    def __init__(self, servers=2, depth=1, *, dealt=False, at_once=1, timeout_s=TIMEOUT_S):
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.roots = itertools.count(1)
        self.epoch = 0
        self.ready = deque()
        # (due, message) of each failed message.
        self.back_off = []
        self.failures = Counter()
        # Failed messages that came again and are not done.
        self.again = set()
        self.unacked = {}
        self.acked = {}
        self.rate = self.arrived = 0.0
        self.work_s = 0.2
        self.servers = [Server() for _ in range(servers)]
        self.line = None if dealt else deque()
        self.turn = itertools.cycle(self.servers)
        self.at_once = at_once
        self.outcomes = []
        # Parts that are down; the driver's lease outlives the driver.
        self.away = set()
        self.driver_gone_at = float("inf")
        self.look_at = 0.0
        self.bounds = []
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        shape = Shape(depth=depth, places=servers, dealt=dealt)
        self.admission = Admission.for_topology(None, timeout, shape)
        tally = SimpleNamespace(add=lambda *_: None, add_all=lambda _: None, error=lambda *_: False)
        ledger = SimpleNamespace(forget=lambda _: None, reset_timeout=lambda _: None)
        self.trees = Trees(self, ledger, tally, self.admission, timeout)

    # -- what the spout hears ----------------------------------------------------------------------

    def ack(self, msg_ids):
        for epoch, message in msg_ids:
            if epoch == self.epoch:
                del self.unacked[message]
                self.again.discard(message)
                self.acked[message] = self.now

    def fail(self, msg_id, _reason):
        epoch, message = msg_id
        if epoch == self.epoch:
            del self.unacked[message]
            self.again.discard(message)
            self.failures[message] += 1
            wait_s = min(10.0, 0.1 * 2 ** self.failures[message])
            heapq.heappush(self.back_off, (self.now + wait_s, message))

    def release(self, msg_id):
        epoch, message = msg_id
        if epoch == self.epoch:
            del self.unacked[message]
            self.ready.appendleft(message)

    # -- time --------------------------------------------------------------------------------------

    def publish(self, count, work_s):
        """Put messages into the queue, and return them."""
        messages = [(next(self.numbers), work_s) for _ in range(count)]
        self.ready += messages
        return messages

    def run(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.step()

    def until(self, condition, most_s=3_600.0):
        end = self.now + most_s
        while not condition() and self.now < end:
            self.step()
        assert condition(), f"after {most_s} s, with a bound of {self.bounds[-1]}"

    def until_acked(self, messages, most_s=3_600.0):
        left = list(messages)

        def done():
            # Each message is looked at once, as it stays acked.
            while left and left[-1] in self.acked:
                left.pop()
            return not left

        self.until(done, most_s)

    def step(self):
        self.now = round(self.now + LOOP_S, 6)
        self.arrived += self.rate * LOOP_S
        self.publish(int(self.arrived), self.work_s)
        self.arrived %= 1
        while self.back_off and self.back_off[0][0] <= self.now and self.may_come_again:
            message = heapq.heappop(self.back_off)[1]
            self.again.add(message)
            self.ready.appendleft(message)
        if self.away.isdisjoint({"executors", "redis"}) and self.driver_gone_at > self.now:
            self.execute()
        attendance = self.attendance
        if "redis" not in self.away and self.outcomes:
            outcomes = self.outcomes
            self.outcomes = []
            self.trees.take_outcomes(
                Outcomes(
                    acked=[root for root, failure in outcomes if failure is None],
                    failed=[failure for _, failure in outcomes if failure is not None],
                ),
                self.now,
            )
        self.trees.expire(self.now, attendance)
        if self.now >= self.look_at:
            self.look_at = self.now + 1
            self.admission.look(self.now, len(self.trees.pending.working), self.crowd)
        if attendance is Attendance.DRIVER and "broker" not in self.away:
            self.fill()
        self.bounds.append(self.admission.bound)

    @property
    def may_come_again(self):
        """The consumer gives half of the room to messages that failed before."""
        return len(self.again) < max(1, self.admission.bound // 2)

    @property
    def attendance(self):
        if "redis" in self.away:
            return Attendance.REDIS_AWAY
        there = self.now < self.driver_gone_at + LEASE_S
        return Attendance.DRIVER if there else Attendance.NO_DRIVER

    def crowd(self):
        held = sum(len(server.held) for server in self.servers)
        queues = [self.line] if self.line is not None else [one.inbox for one in self.servers]
        places = len(self.servers) if self.line is not None else 1
        fullest = max(held + len(queue) for queue in queues) / places
        calls = any(queues) and self.away.isdisjoint({"executors", "redis"})
        long_ago = any(self.now - server.free_at > BEATS_S for server in self.servers)
        return Crowd(fullest, calls and long_ago)

    def execute(self):
        for server in self.servers:
            if self.line is None:
                self._work(server, server.inbox)
        while self.line:
            # The first tuple of the line goes to the task that is free first.
            first = min(self.servers, key=lambda server: server.free_at)
            if not self._work(first, self.line, most=1):
                break
        for server in self.servers:
            if not (server.inbox if self.line is None else self.line):
                server.free_at = max(server.free_at, self.now)

    def _work(self, server, queue, most=1_000_000):
        """Execute the tuples of a queue that end by now; return their number."""
        done = 0
        while queue and done < most and server.free_at + queue[0][2] <= self.now:
            root, number, work_s = queue.popleft()
            server.free_at += work_s
            done += 1
            if number < 0:
                failure = Failure(root=root, component="b", task=1, reason="no")
                self.outcomes.append((root, failure))
                continue
            server.held.append(root)
            if len(server.held) >= self.at_once:
                self.outcomes += [(held, None) for held in server.held]
                server.held = []
        return done

    def fill(self):
        room = self.admission.bound - len(self.trees.pending.working)
        sent = []
        while self.ready and len(sent) < room:
            message = self.ready.popleft()
            root = next(self.roots)
            self.unacked[message] = root
            inbox = next(self.turn).inbox if self.line is None else self.line
            inbox.append((root, *message))
            sent.append((root, (self.epoch, message)))
        self.trees.sent(sent, self.now)
        if len(sent) >= room:
            self.admission.reached(self.now)

    # -- outages -----------------------------------------------------------------------------------

    def executors_away(self, seconds):
        self._without("executors", seconds)

    def redis_away(self, seconds):
        self._without("redis", seconds)

    def redis_emptied(self, seconds):
        self._without("redis", seconds)
        self._empty_inboxes()
        self.trees.give_back_all("Redis lost the ledger")

    def broker_away(self, seconds):
        """Unacked messages are redelivered, and no outcome of their first delivery counts."""
        self.epoch += 1
        self.ready.extendleft(self.unacked)
        self.unacked = {}
        self.again.clear()
        self._without("broker", seconds)

    def driver_killed(self, seconds):
        """The next driver releases the unfinished tuples of the previous one."""
        self._without_driver(seconds)
        inboxes = [server.inbox for server in self.servers] + [self.line or deque()]
        roots = [root for inbox in inboxes for root, _, _ in inbox]
        roots += [root for server in self.servers for root in server.held]
        self._empty_inboxes()
        self.trees.take_outcomes(Outcomes(released=roots), self.now)

    def run_lost(self, seconds):
        """The next driver does not know the unfinished tuples of the previous one."""
        self._without_driver(seconds)
        self._empty_inboxes()

    def _without_driver(self, seconds):
        self.driver_gone_at = self.now
        self.run(seconds)
        self.driver_gone_at = float("inf")

    def _without(self, part, seconds):
        self.away.add(part)
        self.run(seconds)
        self.away.remove(part)
        for server in self.servers:
            server.free_at = self.now

    def _empty_inboxes(self):
        if self.line is not None:
            self.line.clear()
        for server in self.servers:
            server.inbox.clear()
            server.held.clear()
            server.free_at = self.now


OUTAGES = [
    World.executors_away,
    World.redis_away,
    World.redis_emptied,
    World.broker_away,
    World.driver_killed,
    World.run_lost,
]


GROUPINGS = pytest.mark.parametrize("dealt", [False, True], ids=["line", "inboxes"])


def under_load(load, **settings):
    """Begin under a light load of slow work, or a full load of quick work."""
    world = World(**settings)
    if load == "light":
        world.rate = 5.0
        world.run(60)
    else:
        world.publish(60_000, QUICK_S)
        world.run(4)
    return world


def leaves_in(world):
    """Return the seconds, from the first ack on, in which a backlog leaves."""
    backlog = world.publish(BACKLOG, QUICK_S)
    # It goes to the front of the queue, since the test is about the pace, and not about earlier
    # messages.
    world.ready.rotate(BACKLOG)
    acked = len(world.acked)
    world.until(lambda: len(world.acked) > acked)
    first_at = world.now
    world.until_acked(backlog)
    return world.now - first_at


@pytest.fixture(scope="module")
def without_outage():
    return {
        (load, dealt): leaves_in(under_load(load, dealt=dealt))
        for load in ("light", "full")
        for dealt in (False, True)
    }


def assert_as_fast_as_ever(world, took_s):
    """Check just after the outage, and again when its messages are done."""
    assert leaves_in(world) <= WITHIN_S + FACTOR * took_s, f"the bound is {world.bounds[-1]}"
    world.until(lambda: len(world.ready) + len(world.back_off) + len(world.trees.pending) < 5)
    world.run(WITHIN_S)
    assert leaves_in(world) <= FACTOR * took_s + 0.5, f"the bound is {world.bounds[-1]}"


@GROUPINGS
@pytest.mark.parametrize("load", ["light", "full"])
@pytest.mark.parametrize("seconds", [1, pytest.param(40, marks=pytest.mark.rest), 600])
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)
def test_after_an_outage_a_backlog_leaves_as_fast_as_without_one(
    outage, seconds, load, dealt, without_outage
):
    world = under_load(load, dealt=dealt)
    outage(world, seconds)
    assert_as_fast_as_ever(world, without_outage[load, dealt])


@GROUPINGS
@pytest.mark.parametrize("seed", range(8))
def test_after_any_outages_in_a_row_a_backlog_leaves_as_fast_as_without_one(
    seed, dealt, without_outage
):
    chance = random.Random(seed)
    load = chance.choice(["light", "full"])
    world = under_load(load, dealt=dealt)
    for _ in range(4):
        chance.choice(OUTAGES)(world, chance.choice([1, 5, 25, 35, 90]))
        world.run(chance.choice([0.1, 3, 30]))
    assert_as_fast_as_ever(world, without_outage[load, dealt])


@pytest.mark.parametrize("timeout_s", [TIMEOUT_S, None])
def test_thirty_thousand_messages_after_half_an_hour_of_light_load_leave_at_once(timeout_s):
    world = World(timeout_s=timeout_s)
    world.rate = 5.0
    world.run(1_800)
    world.rate = 0.0
    world.work_s = QUICK_S
    burst = world.publish(30_000, QUICK_S)
    began = world.now
    world.until_acked(burst, 60.0)
    assert world.now - began <= 5.0 + 30_000 * QUICK_S / 2


@pytest.mark.parametrize("outage", [None, *OUTAGES])
@pytest.mark.parametrize("at_once", [2, 8, 16])
def test_a_bolt_that_holds_tuples_until_it_has_some_does_not_stand_still(at_once, outage):
    world = World(servers=1, at_once=at_once)
    world.publish(800, 0.001)
    if outage is not None:
        world.until(lambda: world.acked, 60.0)
        world.publish(800, 0.001)
        outage(world, 20)
    wanted = 800 if outage is None else 1_600
    world.until(lambda: len(world.acked) > wanted - at_once, 120.0)


@GROUPINGS
@pytest.mark.parametrize("failing", [4, 8, 50])
@pytest.mark.parametrize("work_s", [0.01, 0.2])
def test_messages_that_always_fail_keep_no_other_waiting(failing, work_s, dealt):
    world = World(servers=4, dealt=dealt)
    world.ready += [(-number, work_s) for number in range(1, failing + 1)]
    good = world.publish(400, 0.01)
    world.until(lambda: world.acked, 5.0)
    world.until_acked(good, 30.0 - world.now)


def test_work_that_fails_faster_than_it_works_lets_the_bound_grow_to_sixteen_and_no_further():
    """For example a bolt whose database is down: with more in flight, much would time out once it
    is back.
    """
    world = World(servers=4)
    world.ready += [(-number, 0.001) for number in range(1, 2_001)]
    world.run(60)
    assert max(world.bounds) == UNPROVEN_BOUND
    assert world.failures.total() > 10_000


def test_where_one_in_two_fails_the_bound_follows_the_others():
    world = World(servers=2)
    for number in range(1, 2_001):
        world.ready.append((-number, 0.001))
        world.publish(1, 0.001)
    world.until(lambda: len(world.acked) == 2_000, 30.0)
    assert max(world.bounds) > UNPROVEN_BOUND
