"""Keys of tuples, the same over all deliveries of a message. Pure.

Root ids are drawn, so that a message that is delivered again never meets its earlier attempt. An
effect that must take place once, however often the message is delivered, needs the opposite: an id
that is the same each time. It is derived as edges are, from the identity of the message and the way
of the tuple: at each emission from the anchor's key, the emission's position, and the bolt that
receives it. Never from a task: a shuffle, a rebalance or another parallelism sends the tuple
elsewhere.

A key is five numbers of 64 bits, its lanes: two of them are the key that bolts see. The others
help to tell a repeat from another message that has its identity: 128 bits of a digest of the body,
in the last two lanes, and in the third the seconds since the epoch from which on the message may
have been processed (32 bits) and a digest of 32 bits, by which marks of older versions are
compared. A lane is 0 where it is not known. Zeros are no key.

The digest has no secret key: all spout workers would need the same one for as long as marks are
kept. A publisher can therefore compute it, and 128 bits of BLAKE2b are enough that none finds a
second body for the digest of another.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiercel.acker.ids import mix_array
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


class Said(NamedTuple):
    """The message of a key, apart from its identity; 0 for a part that is not known.

    * ``content``: 128 bits of a digest of the body.
    * ``since``: seconds since the epoch, from which on it may have been processed.
    * ``short``: 32 bits of a digest of the body, as marks had it before they had ``content``.
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
    """Makes the keys of the tuples of one spout: of one topology, and one of its components."""

    def __init__(self, topology: str, component: str) -> None:
        self._topology = topology
        self._component = component
        self._begun: dict[str, blake2b] = {}

    def key(self, identity: bytes, said: Said, stream: str) -> bytes:
        """The lanes of a tuple on ``stream``, whose message has this identity."""
        begun = self._begun.get(stream)
        if begun is None:
            begun = self._begun[stream] = _hash(self._topology, self._component, stream)
        made = begun.copy()
        made.update(identity)
        # A spout of a user's may give any number. A small one would be taken for a short digest.
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
    """Return which of the tuples have a key."""
    found: NDArray[np.bool_] = (keys[:, 0] | keys[:, 1]) != np.uint64(0)
    return found


def said_by(lanes: bytes) -> Said:
    """Read the lanes of a tuple about its message."""
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

    Two emissions of one anchor differ, and so do two copies of one emission: a position has the
    number of the emission in its lower half, the number of the copy for this bolt in its upper
    half. The order of the anchors makes no difference. An emission that has an anchor without a
    key, or no anchor, has none.
    """
    a = mix_array(parents[:, 0] ^ mix_array(positions))
    b = mix_array(parents[:, 1] + a)
    said = parents[:, 2:]
    keyed = has_key(parents)
    if not (len(counts) == len(parents) and (counts == 1).all()):
        starts = np.cumsum(counts) - counts
        anchored = counts > 0
        a, b = (_summed(lane, starts, anchored) for lane in (a, b))
        said = _said_together(parents, starts, anchored)
        keyed = _all_of(keyed, starts, anchored)
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


def _summed(lane: Ids, starts: NDArray[np.int64], anchored: NDArray[np.bool_]) -> Ids:
    sums = np.zeros(len(starts), np.uint64)
    if anchored.any():
        sums[anchored] = np.add.reduceat(lane, starts[anchored])
    return sums


def _all_of(
    keyed: NDArray[np.bool_], starts: NDArray[np.int64], anchored: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    found = np.zeros(len(starts), np.bool_)
    if anchored.any():
        found[anchored] = np.logical_and.reduceat(keyed, starts[anchored])
    return found


def _said_together(parents: Keys, starts: NDArray[np.int64], anchored: NDArray[np.bool_]) -> Keys:
    """Return the last three lanes for several messages: all that they say, since the oldest."""
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
