"""Makes up whole runs for the property tests: tuple trees, repeated tasks, lost and repeated calls.

A *task* (level, partition) is attempted one or several times. An attempt reads the outputs of some attempts of the level before,
and acks, fails or holds what it reads, and emits children, anchored to one or several tuples. Its ``work`` is what it tells the
ledger. What should come of it all is computed here with sets of tuples, not with XOR: that is what the ledger is measured by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from acker import Failure, Token
from acker.ids import edge, mix, seed
from tests.ledgers import token, updates

LEVELS, PARTITIONS = 3, 2
Name = tuple


@dataclass(frozen=True)
class Tuple_:
    """One copy of a tuple. Its name is the same in every attempt that makes it the same way."""

    name: Name
    partition: int
    edges: dict[int, int] = field(hash=False, compare=False)
    """The id by which each of its roots knows it."""


@dataclass
class Attempt:
    token: Token
    read: list[Tuple_]
    consumed: set[tuple[int, Name]] = field(default_factory=set)
    """(root, tuple): acked."""
    created: set[tuple[int, Name]] = field(default_factory=set)
    """(root, tuple): emitted, and anchored to a tuple of this root."""
    failed: dict[int, str] = field(default_factory=dict)
    xors: dict[int, int] = field(default_factory=dict)
    emitted: list[Tuple_] = field(default_factory=list)

    @property
    def work(self):
        """The same for attempts that did the same."""
        failing = frozenset(self.failed)
        return frozenset((root, xor) for root, xor in self.xors.items() if root not in failing), failing

    @property
    def roots(self) -> set[int]:
        return set(self.xors) | set(self.failed)

    def arguments(self):
        """For ``Ledger.apply``."""
        failures = [Failure(root=root, component="bolt", task=1, reason=why) for root, why in self.failed.items()]
        return self.token, updates(self.xors), failures


@dataclass
class Run:
    """``attempts[level, partition]``: in the order in which they ran; the last one survives."""

    spout: list[Tuple_]
    attempts: dict[tuple[int, int], list[Attempt]]

    def ack_val(self, root: int) -> int:
        value = 0
        for tup in self.spout:
            value ^= tup.edges.get(root, 0)
        return value


def make_run(random: Random, *, roots: int, temper: float) -> Run:
    """``temper``: how likely an attempt does other work than the one before; 0 makes every bolt deterministic."""
    ids = [mix(random.getrandbits(64)) for _ in range(roots)]
    spout = [
        Tuple_(("spout", root, target), target % PARTITIONS, {root: edge(seed(root, 0), 0, target)})
        for root in ids
        for target in range(random.choice((1, 1, 2)))
    ]
    run = Run(spout, {})
    salt = random.getrandbits(32)
    for level in range(LEVELS):
        for partition in range(PARTITIONS):
            run.attempts[level, partition] = []
            for _ in range(random.choice((1, 1, 2, 3))):
                read = _input(random, run, level, partition)
                own = random.getrandbits(32) if random.random() < temper else salt
                run.attempts[level, partition].append(_attempt(token(level, partition=partition), read, own))
            # The surviving attempt reads what survived.
            read = _input(None, run, level, partition)
            last = run.attempts[level, partition][-1]
            if {tup.name for tup in last.read} != {tup.name for tup in read}:
                run.attempts[level, partition].append(_attempt(last.token, read, salt))
    return run


def _input(random: Random | None, run: Run, level: int, partition: int) -> list[Tuple_]:
    """What reaches a partition; with ``random`` also from attempts that did not survive."""
    if level == 0:
        return [tup for tup in run.spout if tup.partition == partition]
    read = []
    for source in range(PARTITIONS):
        attempts = run.attempts[level - 1, source]
        chosen = random.choice(attempts) if random is not None else attempts[-1]
        read += [tup for tup in chosen.emitted if tup.partition == partition]
    return read


def _attempt(name: Token, read: list[Tuple_], salt: int) -> Attempt:
    attempt = Attempt(name, read)
    last_level = name.level == LEVELS - 1
    # Neither depends on the order of arrival, as a bolt's work must not.
    for tup in sorted(read, key=lambda one: repr(one.name)):
        for root in tup.edges:
            attempt.xors.setdefault(root, 0)
        choice = Random(f"{salt} {tup.name}")
        children = 0 if last_level else choice.choice((0, 1, 1, 2))
        for position in range(children):
            anchors = [tup, *(other for other in read if other is not tup and choice.random() < 0.3)]
            _emit(attempt, anchors, (salt if choice.random() < 0.1 else 0, position, tup.name))
        verdict = choice.random()
        if verdict < 0.05:
            attempt.failed.update(dict.fromkeys(tup.edges, f"says {tup.name[0]}"))
        elif verdict > 0.05 + 0.05:
            for root, own in tup.edges.items():
                attempt.consumed.add((root, tup.name))
                attempt.xors[root] ^= own
    return attempt


def _emit(attempt: Attempt, anchors: list[Tuple_], what: tuple) -> None:
    """One new edge a target, anchor and root; those of one root XOR together."""
    number, target = mix(hash_of(what)) & 0xFFFF, mix(hash_of(what)) >> 20 & 7
    edges: dict[int, int] = {}
    for anchor in anchors:
        for root, own in anchor.edges.items():
            edges[root] = edges.get(root, 0) ^ edge(seed(root, own), number, target)
    child = Tuple_(("child", *what, tuple(sorted(repr(anchor.name) for anchor in anchors))), target % PARTITIONS, edges)
    attempt.emitted.append(child)
    for root, own in edges.items():
        attempt.created.add((root, child.name))
        attempt.xors[root] = attempt.xors.get(root, 0) ^ own


def hash_of(what: tuple) -> int:
    """Python's own hash changes from process to process."""
    return Random(repr(what)).getrandbits(64)
