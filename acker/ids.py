"""Ids and keys: edge ids, root ids, keys of tuples, hashes of values, and ids of inboxes and lines.
Pure.

All but the last use one 64-bit mix. Edge ids are derived, so that a repeated task repeats them;
root ids are random, so that a replayed message never shares the ids of its earlier attempt. These
ids are unsigned 64-bit; array functions wrap silently, scalar ones by mask.

An effect that must take place once, however often the message is delivered, needs a *key*: an id
that is the same at each delivery. It is derived, like an edge, from the identity of the message and
the path of the tuple: at each emission from the anchor's key, the emission's position, and the
receiving bolt. It never depends on a task: a shuffle, a rebalance or another parallelism sends the
tuple to another one.

A key is five numbers of 64 bits, its lanes. The first two are the key that bolts see. The others
tell a repeat from another message with the same identity: the last two are a digest of the body of
128 bits; the third has the earliest time at which the message may have been processed, in seconds
since the epoch (32 bits), and a digest of 32 bits, which is compared with marks of older versions.
An unknown lane is 0. Five zeros mean no key.

The digest has no secret key: all spout workers would need the same one for as long as marks are
kept. A publisher can therefore compute it, and 128 bits of BLAKE2b are enough that no publisher
finds a second body with the same digest.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Context, Decimal
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiercel.acker.ledger import Ids

# Shape (n, LANES).
Keys = NDArray[np.uint64]

LANES = 5
# Bytes of the key that bolts see.
KEY_BYTES = 16
NO_KEY = bytes(8 * LANES)
_LOW = np.uint64((1 << 32) - 1)
_HALF = np.uint64(32)
_DIGITS = (1 << 32) - 1
_CONTENT = (1 << 128) - 1
_TOP = 1 << 127
# More digits than a decimal column has.
_ALL_DIGITS = Context(prec=76)
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
# Made once: as constants of a small array's operations they would cost half of its time.
_GAMMA_64 = np.uint64(_GAMMA)
_MULTIPLIER_1_64 = np.uint64(_MULTIPLIER_1)
_MULTIPLIER_2_64 = np.uint64(_MULTIPLIER_2)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)

# Roots that share their 24 high bits, hence a bucket of the ledger: at 21 bytes each they just fit
# a 2 KiB allocation.
RUN_LENGTH = 96
_RUNS = 1 << 16
_LOW_BITS = 40

# The ids of a task's extra tasks: its own plus a multiple of this number.
EXTRA = 1_000_000
# A line's id has a mark, the number of the bolt's tasks and the lowest task: it is above all tasks.
_BITS = 24
_TASK = (1 << _BITS) - 1
_LINE = 1 << 2 * _BITS
_RETURNED = _LINE << 1


def mix(x: int) -> int:
    """Return splitmix64's output for the state ``x``.

    A bijection in which every input bit flips every output bit half the time.
    """
    x = (x + _GAMMA) & _MASK
    x = ((x ^ (x >> 30)) * _MULTIPLIER_1) & _MASK
    x = ((x ^ (x >> 27)) * _MULTIPLIER_2) & _MASK
    return x ^ (x >> 31)


def mix_array(x: Ids) -> Ids:
    """Apply ``mix`` to every element."""
    x = x + _GAMMA_64
    x = (x ^ (x >> _SHIFT_1)) * _MULTIPLIER_1_64
    x = (x ^ (x >> _SHIFT_2)) * _MULTIPLIER_2_64
    return x ^ (x >> _SHIFT_3)


def seed(root: int, edge: int) -> int:
    """Return the identity of an anchor: one tuple (``edge``) in one tree (``root``).

    Edge 0 stands for the spout tuple's origin.
    """
    return mix(root ^ mix(edge))


def seed_array(roots: Ids, edges: Ids) -> Ids:
    """Apply ``seed`` to every pair."""
    return mix_array(roots ^ mix_array(edges))


def edge(seed: int, position: int, target: int) -> int:
    """Return the id of one copy of a tuple.

    The ``position``-th emission anchored to ``seed``, sent to the task ``target``.

    Positions and targets are below 2**32. Never 0, and different for different (position,
    target) of one seed.
    """
    return mix(seed ^ mix(position << 32 | target)) or _GAMMA


def edges(seeds: Ids, positions: Ids, targets: Ids | np.uint64) -> Ids:
    """Apply ``edge`` to every triple."""
    ids = mix_array(seeds ^ mix_array(positions << _HALF | targets))
    ids[ids == 0] = _GAMMA_64
    return ids


class RootIds:
    """Draws root ids: 8 bits of time generation, 16 bits of run, 40 random bits. Not thread-safe.

    Ids of one run share a bucket of the ledger, so that roots registered together are looked up
    together. The run counts on from a random start: no two ids of one ``RootIds`` are equal within
    a generation (of up to 6 million ids), and equal ids of two owners, one chance in 2**56 per
    pair, are detected by ``register``.
    """

    def __init__(
        self, generation_length: timedelta, clock: Callable[[], float] = time.time
    ) -> None:
        """``clock`` returns seconds since the epoch."""
        self._length_s = max(generation_length.total_seconds(), 0.001)
        self._clock = clock
        self._run = secrets.randbelow(_RUNS)
        self._generation = -1
        self._fresh: list[int] = []

    def draw(self, count: int) -> list[int]:
        """Draw ``count`` new root ids, all different."""
        generation = int(self._clock() // self._length_s) % 256
        if generation != self._generation:
            self._generation = generation
            self._fresh = []
        drawn: list[int] = []
        while len(drawn) < count:
            if not self._fresh:
                self._fresh = self._draw_run()
            wanted = count - len(drawn)
            drawn += self._fresh[:wanted]
            self._fresh = self._fresh[wanted:]
        return drawn

    def _draw_run(self) -> list[int]:
        self._run = (self._run + 1) % _RUNS
        high = (self._generation << 16 | self._run) << _LOW_BITS
        low = np.empty(0, np.uint64)
        while low.size < RUN_LENGTH:
            bits = np.frombuffer(secrets.token_bytes(8 * (RUN_LENGTH - low.size)), np.uint64)
            low = np.unique(np.concatenate((low, bits >> np.uint64(64 - _LOW_BITS))))
        drawn: list[int] = (low | np.uint64(high)).tolist()
        return drawn


def hash_values(key: Sequence[Any]) -> int:
    """Return the 32-bit hash of a key with its columns' types, equal to ``key_hash``."""
    return mix(int.from_bytes(hashed_values(key, 8), "big")) >> 32


def hashed_values(key: Sequence[Any], size: int) -> bytes:
    state = hashlib.blake2b(digest_size=size)
    for value in key:
        encoded = _encode(value)
        state.update(len(encoded).to_bytes(4, "big"))
        state.update(encoded)
    return state.digest()


def without_zeros(number: Decimal) -> Decimal:
    """Return the number without zeros at its end: equal decimals of two scales have one text."""
    return number.normalize(_ALL_DIGITS)


def _encode(value: Any) -> bytes:  # noqa: PLR0911 - one return per type
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, list):
        return b"l" + b",".join(map(_encode, value))
    if isinstance(value, dict):
        return b"d" + b",".join(map(_encode, value.values()))  # of a struct, in its order
    if isinstance(value, float):
        return b"f" + (value + 0.0).hex().encode()  # -0.0 equals 0.0
    if isinstance(value, int):
        return b"i" + str(int(value)).encode()
    if isinstance(value, Decimal):
        value = without_zeros(value)
    return b"o" + str(value).encode()


class Said(NamedTuple):
    """The message of a key, apart from its identity; 0 for a part that is not known.

    * ``content``: 128 bits of a digest of the body.
    * ``since``: earliest time it may have been processed, in seconds since the epoch.
    * ``short``: 32 bits of a digest of the body, as in marks of older versions.
    """

    content: int = 0
    since: int = 0
    short: int = 0

    def contradicts(self, then: int) -> bool:
        """Return True if the message that was processed ``then`` had another body.

        ``then`` is its ``content``, or a number below 2**32: its ``short``.
        """
        now = self.short if then <= _DIGITS else self.content
        return bool(now and then and now != then)


class KeyOrigin:
    """Makes the keys of the tuples of one spout of one topology."""

    def __init__(self, topology: str, component: str) -> None:
        self._topology = topology
        self._component = component
        self._begun: dict[str, blake2b] = {}

    def key(self, identity: bytes, said: Said, stream: str) -> bytes:
        """Return the lanes of a tuple on ``stream`` whose message has this identity."""
        begun = self._begun.get(stream)
        if begun is None:
            begun = self._begun[stream] = _hash(self._topology, self._component, stream)
        made = begun.copy()
        made.update(identity)
        # A user's spout may give any number. A small one would look like a short digest.
        content = said.content & _CONTENT
        short = said.short or content & _DIGITS
        if 0 < content <= _DIGITS:
            content |= _TOP
        third = short << 32 | min(max(said.since, 0), _DIGITS)
        return made.digest() + third.to_bytes(8, "little") + content.to_bytes(16, "little")


def as_keys(keys: list[bytes]) -> Keys:
    """Join the keys of n tuples; ``NO_KEY`` stands for none."""
    return np.frombuffer(b"".join(keys), "<u8").reshape(-1, LANES)


def has_key(keys: Keys) -> NDArray[np.bool_]:
    """Return True for each tuple that has a key."""
    found: NDArray[np.bool_] = (keys[:, 0] | keys[:, 1]) != np.uint64(0)
    return found


def said_by(lanes: bytes) -> Said:
    """Read the message's part of a tuple's lanes."""
    third = int.from_bytes(lanes[KEY_BYTES : KEY_BYTES + 8], "little")
    content = int.from_bytes(lanes[KEY_BYTES + 8 :], "little")
    return Said(content, third & _DIGITS, third >> 32)


def lanes_of(keys: Keys) -> list[bytes | None]:
    """Return the lanes of each tuple, whose first 16 bytes are the key; None without a key."""
    joined = keys.astype("<u8").tobytes()
    size = len(NO_KEY)
    found: list[bytes | None] = [joined[at : at + size] for at in range(0, len(joined), size)]
    for row in np.flatnonzero(~has_key(keys)).tolist():
        found[row] = None
    return found


def child_keys(parents: Keys, counts: NDArray[np.int64], positions: Ids, bolt: str) -> Keys:
    """Derive the keys of emissions that ``bolt`` receives. Emission i has ``counts[i]`` anchors;
    ``parents`` are the keys of the anchors, and ``positions`` the numbers of their emissions,
    parallel to them.

    Two emissions of one anchor have different keys, and so do two copies of one emission: the lower
    half of a position is the number of the emission, the upper half the number of the copy for this
    bolt. The order of the anchors does not matter. An emission without anchors, or with an anchor
    without a key, has no key.
    """
    a = mix_array(parents[:, 0] ^ mix_array(positions))
    b = mix_array(parents[:, 1] + a)
    said = parents[:, 2:]
    keyed = has_key(parents)
    if not (len(counts) == len(parents) and (counts == 1).all()):
        starts = np.cumsum(counts) - counts
        anchored = counts > 0
        a, b = (_reduced(np.add, lane, starts, anchored) for lane in (a, b))
        said = _said_together(parents, starts, anchored)
        keyed = _reduced(np.logical_and, keyed, starts, anchored)
    high, low = _salt(bolt)
    c = mix_array(a ^ high)
    d = mix_array((b ^ low) + c)
    made = np.column_stack((c ^ mix_array(d), d, said))
    if not keyed.all():
        made[~keyed] = 0
    return made


@lru_cache(maxsize=1024)
def _salt(bolt: str) -> tuple[np.uint64, np.uint64]:
    digest = _hash(bolt).digest()
    return np.uint64(int.from_bytes(digest[:8])), np.uint64(int.from_bytes(digest[8:]))


def _hash(*names: str) -> blake2b:
    """Join names, each with its length, so that no two lists give the same text."""
    made = blake2b(digest_size=KEY_BYTES)
    for name in names:
        encoded = name.encode()
        made.update(len(encoded).to_bytes(4, "little") + encoded)
    return made


def _reduced(
    how: np.ufunc, lane: NDArray[Any], starts: NDArray[np.int64], anchored: NDArray[np.bool_]
) -> NDArray[Any]:
    found = np.zeros(len(starts), lane.dtype)
    if anchored.any():
        found[anchored] = how.reduceat(lane, starts[anchored])
    return found


def _said_together(parents: Keys, starts: NDArray[np.int64], anchored: NDArray[np.bool_]) -> Keys:
    """Combine the last three lanes of several messages: their digests, and the earliest time."""
    together = np.zeros((len(starts), LANES - 2), np.uint64)
    if not anchored.any():
        return together
    at = starts[anchored]
    short = parents[:, 2] >> _HALF
    since = parents[:, 2] & _LOW
    high = mix_array(parents[:, 3] ^ mix_array(parents[:, 4]))
    low = mix_array(parents[:, 4] + high)

    def known(some: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return True per emission if a part is known of all its messages."""
        found: NDArray[np.bool_] = np.logical_and.reduceat(some, at)
        return found

    shorts = np.where(known(short > 0), np.bitwise_xor.reduceat(mix_array(short) & _LOW, at), 0)
    oldest = np.minimum.reduceat(np.where(since > 0, since, _LOW), at)
    oldest = np.where(oldest == _LOW, np.uint64(0), oldest)
    together[anchored, 0] = shorts.astype(np.uint64) << _HALF | oldest
    contents = known((parents[:, 3] | parents[:, 4]) != 0)
    for lane, digest in enumerate((high, low), start=1):
        together[anchored, lane] = np.where(contents, np.add.reduceat(digest, at), np.uint64(0))
    return together


# -- inboxes and lines ----------------------------------------------------------------------------


def line_of(tasks: Sequence[int]) -> int:
    """Return the id of the line of these tasks, which are all tasks of a bolt, in order."""
    return _LINE | len(tasks) << _BITS | tasks[0]


@cache
def is_line(target: int) -> bool:
    """Return True for a line, False for the inbox of a task."""
    return target >= _LINE


def tasks_of(line: int) -> range:
    """Return the tasks that take from a line."""
    return range(line & _TASK, (line & _TASK) + (line >> _BITS & _TASK))


def part_of_line(lowest: int) -> int:
    """Return the id of the part of a line on one server, given the lowest task there."""
    return _LINE | lowest


def returned_to(part: int) -> int:
    """Return the id of the inbox of tuples returned to a part, which are claimed first."""
    return part ^ _LINE ^ _RETURNED


def is_extra(target: int) -> bool:
    """Return True for an extra task."""
    return target > EXTRA and not is_line(target)


def task_of(target: int) -> int:
    """Return the task of an inbox (of an extra task: its base), or the lowest task of a line."""
    return target & _TASK if is_line(target) else target % EXTRA
