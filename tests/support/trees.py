"""Makes up whole runs for the property tests: tuple trees, repeated tasks, lost and repeated calls.

A *task* (bolt, partition) is attempted one or several times. An attempt reads the outputs of some
attempts of the bolt before, and acks, fails or holds each tuple, and emits children, anchored to
one or several tuples. Its ``work`` is what it reports to the ledger. The expected result is
computed here with sets of tuples, not with XOR.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.support.ledgers import token, updates
from tiercel.acker.ids import edge, mix, seed
from tiercel.acker.ledger import Failure, Token

BOLTS = 3
PARTITIONS = 2
Name = int


@dataclass(frozen=True)
class Copy:
    """One copy of a tuple. Its name is the same in every attempt that emits it in the same way."""

    name: Name
    partition: int
    # The id by which each of the copy's roots knows it.
    edges: dict[int, int] = field(hash=False, compare=False)


@dataclass
class Attempt:
    token: Token
    read: list[Copy]
    # (root, tuple): acked.
    consumed: set[tuple[int, Name]] = field(default_factory=set)
    # (root, tuple): emitted, and anchored to a tuple of this root.
    created: set[tuple[int, Name]] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    xors: dict[int, int] = field(default_factory=dict)
    emitted: list[Copy] = field(default_factory=list)

    @property
    def work(self):
        """Return a value that is equal for attempts that did the same."""
        failing = frozenset(self.failed)
        return frozenset(
            (root, xor) for root, xor in self.xors.items() if root not in failing
        ), failing

    @property
    def roots(self) -> set[int]:
        return set(self.xors) | set(self.failed)

    def arguments(self):
        """Return the arguments for ``Ledger.apply``."""
        failures = [
            Failure(root=root, component="bolt", task=1, reason=why)
            for root, why in self.failed.items()
        ]
        return self.token, updates(self.xors), failures


@dataclass
class Run:
    """``attempts[bolt, partition]`` are in order of execution; the last one survives."""

    roots: list[int]
    spout: list[Copy]
    attempts: dict[tuple[int, int], list[Attempt]]

    def ack_val(self, root: int) -> int:
        value = 0
        for tup in self.spout:
            value ^= tup.edges.get(root, 0)
        return value


def make_run(random: Random, *, roots: int, temper: float, step: int = 0) -> Run:
    """Make up one step of each task.

    ``temper`` is the probability that an attempt does other work than the previous one; 0 makes
    every bolt deterministic.
    """
    ids = [mix(random.getrandbits(64)) for _ in range(roots)]
    spout = [
        Copy(
            name_of("spout", root, target),
            target % PARTITIONS,
            {root: edge(seed(root, 0), 0, target)},
        )
        for root in ids
        for target in range(random.choice((1, 1, 2)))
    ]
    run = Run(ids, spout, {})
    salt = random.getrandbits(32)
    for bolt in range(BOLTS):
        for partition in range(PARTITIONS):
            attempts = run.attempts[bolt, partition] = []
            for _ in range(random.choice((1, 1, 2, 3))):
                read = _input(random, run, bolt, partition)
                own_salt = random.getrandbits(32) if random.random() < temper else salt
                attempts.append(
                    _attempt(token(PARTITIONS * bolt + partition, step=step), read, salt, own_salt)
                )
            # The surviving attempt reads the output of surviving attempts.
            read = _input(None, run, bolt, partition)
            if {tup.name for tup in attempts[-1].read} != {tup.name for tup in read}:
                attempts.append(_attempt(attempts[-1].token, read, salt, salt))
    return run


def _input(random: Random | None, run: Run, bolt: int, partition: int) -> list[Copy]:
    """Return the input of a partition; with ``random`` also from attempts that did not survive."""
    if bolt == 0:
        return [tup for tup in run.spout if tup.partition == partition]
    read = []
    for source in range(PARTITIONS):
        attempts = run.attempts[bolt - 1, source]
        chosen = random.choice(attempts) if random is not None else attempts[-1]
        read += [tup for tup in chosen.emitted if tup.partition == partition]
    return read


def _attempt(token: Token, read: list[Copy], salt: int, own_salt: int) -> Attempt:
    """Make one attempt at a task.

    Its action on a tuple depends on the tuple and a salt, never on the order of arrival.
    """
    attempt = Attempt(token, sorted(read, key=lambda tup: tup.name))
    for tup in attempt.read:
        for root in tup.edges:
            attempt.xors.setdefault(root, 0)
        other_work = Random(f"{own_salt} {tup.name}").random() < 0.3
        choice = Random(f"{own_salt if other_work else salt} {tup.name}")
        for position in range(
            0 if token.task >= PARTITIONS * (BOLTS - 1) else choice.choice((0, 1, 1, 2))
        ):
            others = [other for other in attempt.read if other is not tup and choice.random() < 0.3]
            _emit(
                attempt,
                [tup, *others],
                position + (choice.getrandbits(16) << 8 if choice.random() < 0.1 else 0),
            )
        verdict = choice.random()
        if verdict < 0.05:
            attempt.failed.update(dict.fromkeys(tup.edges, f"no {tup.name}"))
        elif verdict > 0.1:  # otherwise it is held
            for root, edge_id in tup.edges.items():
                attempt.consumed.add((root, tup.name))
                attempt.xors[root] ^= edge_id
    return attempt


def _emit(attempt: Attempt, anchors: list[Copy], what: int) -> None:
    """Make one new edge per anchor and root; the edges of one root are XORed together."""
    name = name_of(what, *(anchor.name for anchor in anchors))
    target = name & 7
    position = name >> 3 & 0xFFFFFFFF
    edges: dict[int, int] = {}
    for anchor in anchors:
        for root, own in anchor.edges.items():
            edges[root] = edges.get(root, 0) ^ edge(seed(root, own), position, target)
    attempt.emitted.append(Copy(name, target % PARTITIONS, edges))
    for root, own in edges.items():
        attempt.created.add((root, name))
        attempt.xors[root] = attempt.xors.get(root, 0) ^ own


def name_of(*what: object) -> Name:
    """Python's own hash differs between processes."""
    return Random(repr(what)).getrandbits(64)


@dataclass
class Expectation:
    """Model of the ledger, by sets: an ACK if and only if every created tuple of the tree was
    consumed.
    """

    run: Run
    # Each shard decides about a token for its own roots.
    shard_of: Callable[[int], int] = lambda _: 0
    outcomes: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known: dict[tuple[Token, int], Attempt] = {}
        self._applied: dict[tuple[Token, int], set[int]] = {}
        self._open = {
            root: {tup.name for tup in self.run.spout if root in tup.edges}
            for root in self.run.roots
        }
        # Consumed before it was created: the child's task was faster.
        self._early: dict[int, set[Name]] = {root: set() for root in self.run.roots}

    def deliver(self, attempt: Attempt, first: int | None = None) -> None:
        """Deliver the call, or only its ``first`` roots if it breaks off."""
        for root in sorted(attempt.roots)[:first]:
            self.deliver_root(attempt, root)

    def deliver_root(self, attempt: Attempt, root: int) -> None:
        """Deliver the part of the call for this root."""
        token = (attempt.token, self.shard_of(root))
        known = self._known.setdefault(token, attempt)
        applied = self._applied.setdefault(token, set())
        if known.work != attempt.work:
            self.outcomes.setdefault(root, "failed")
        elif root not in applied:
            applied.add(root)
            self._apply(attempt, root)

    def _apply(self, attempt: Attempt, root: int) -> None:
        if root in attempt.failed:
            self.outcomes.setdefault(root, "failed")
        changed = {name for owner, name in attempt.created if owner == root}
        consumed = {name for owner, name in attempt.consumed if owner == root}
        created = self._open[root] | changed
        done = self._early[root] | consumed
        self._open[root], self._early[root] = created - done, done - created
        if not self._open[root] and not self._early[root]:
            self.outcomes.setdefault(root, "acked")

    def survivors(self) -> dict[int, str]:
        """Return the fates of the roots if every attempt did the same work and every call came."""
        last = [attempts[-1] for attempts in self.run.attempts.values()]
        fate = {}
        for root in self.run.roots:
            created = {tup.name for tup in self.run.spout if root in tup.edges}
            created |= {
                name for attempt in last for owner, name in attempt.created if owner == root
            }
            consumed = {
                name for attempt in last for owner, name in attempt.consumed if owner == root
            }
            if any(root in attempt.failed for attempt in last):
                fate[root] = "failed"
            elif created == consumed:
                fate[root] = "acked"
        return fate
