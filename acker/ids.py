"""Ids: a 64-bit mix, the edge ids derived with it, and the drawing of root ids.

Edge ids are derived and not drawn, so that a repeated task repeats them; root ids are drawn, so
that a replayed message never meets the ids of its earlier attempt. All ids are unsigned 64-bit;
array functions wrap silently, as the scalar ones do by mask.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np

from tiercel.acker.ledger import Ids

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB

# Roots that share their 24 high bits, hence a bucket of the ledger: their 21 bytes each just fit a
# 2 KiB allocation.
RUN_LENGTH = 96
_RUNS = 1 << 16
_LOW_BITS = 40


def mix(x: int) -> int:
    """splitmix64's output for the state ``x``.

    A bijection in which every input bit flips every output bit half the time.
    """
    x = (x + _GAMMA) & _MASK
    x = ((x ^ (x >> 30)) * _MULTIPLIER_1) & _MASK
    x = ((x ^ (x >> 27)) * _MULTIPLIER_2) & _MASK
    return x ^ (x >> 31)


def mix_array(x: Ids) -> Ids:
    """``mix`` of every element."""
    x = x + np.uint64(_GAMMA)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
    return x ^ (x >> np.uint64(31))


def seed(root: int, edge: int) -> int:
    """The identity of an anchor: one tuple (``edge``) in one tree (``root``).

    Edge 0 stands for the spout tuple's origin.
    """
    return mix(root ^ mix(edge))


def seed_array(roots: Ids, edges: Ids) -> Ids:
    """``seed`` of every pair."""
    return mix_array(roots ^ mix_array(edges))


def edge(seed: int, position: int, target: int) -> int:
    """Return the id of one copy of a tuple.

    The ``position``-th emission anchored to ``seed``, sent to the task ``target``.

    Positions and targets are below 2**32. Never 0, and different for different (position,
    target) of one seed.
    """
    return mix(seed ^ mix(position << 32 | target)) or _GAMMA


def edges(seeds: Ids, positions: Ids, targets: Ids) -> Ids:
    """``edge`` of every triple."""
    ids = mix_array(seeds ^ mix_array(positions << np.uint64(32) | targets))
    return np.where(ids == 0, np.uint64(_GAMMA), ids)


class RootIds:
    """Draws root ids: 8 bits of time generation, 16 bits of run, 40 random bits. Not thread-safe.

    Ids of one run share a bucket of the ledger, so that roots registered together are looked up
    together. The run counts on from a random start: no two ids of one ``RootIds`` are equal within
    a generation (of up to 6 million ids), and equal ids of two owners, one chance in 2**56 a pair,
    are seen by ``register``.
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
        """``count`` new root ids, all different."""
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
