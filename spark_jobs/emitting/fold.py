"""Effect of a task on the trees of its input, computed in numpy when the step ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiercel.acker.ids import LANES, Keys, child_keys, edge, edges, seed, seed_array
from tiercel.acker.inbox.chunk import Lineage, Rows
from tiercel.acker.ledger import Ids, Updates

# Stands for the root of a spout tuple that is not tracked.
UNTRACKED = 0
_FIRST = np.zeros(1, np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchors:
    """The anchors of n emissions to one task: parallel arrays, one entry per (emission, anchor), in
    order of emission.
    """

    # Shape (n,): how many anchors each emission has.
    counts: Rows
    # The anchor's row in the input.
    rows: Rows
    # Its number among the emissions that are anchored to that row. In the upper half, which edges
    # pass over: the number of this copy among the emission's copies for one bolt.
    positions: Ids

    def select(self, emissions: Rows) -> Anchors:
        """The copies of some of the emissions."""
        kept = emissions
        if len(self.rows) != len(self.counts) or not np.all(self.counts == 1):
            kept = _expand(
                (np.cumsum(self.counts) - self.counts)[emissions], self.counts[emissions]
            )
        return Anchors(
            counts=self.counts[emissions], rows=self.rows[kept], positions=self.positions[kept]
        )

    def go(self, failed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which emissions have an anchor that has not ``failed``, or none at all."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        good = np.bincount(owner, weights=~failed[self.rows], minlength=len(self.counts))
        goes: NDArray[np.bool_] = (good > 0) | (self.counts == 0)
        return goes

    def numbered(self, numbers: Ids) -> Anchors:
        """The ids of copies that have these numbers, in the upper half."""
        upper = np.repeat(numbers, self.counts)
        return Anchors(counts=self.counts, rows=self.rows, positions=self.positions | upper)


def first_lineage_of_few(given: Sequence[int], target: int) -> Lineage:
    """The first edges of the trees: derived from the root and the target, so that two copies
    of a tuple differ.
    """
    roots = [root for root in given if root != UNTRACKED]
    return Lineage(
        offsets=np.array([0, *accumulate([root != UNTRACKED for root in given])], np.int32),
        roots=np.array(roots, np.uint64),
        edges=np.array([edge(seed(root, 0), 0, target) for root in roots], np.uint64),
    )


def first_lineage_of_many(ids: Sequence[int] | Ids, target: int) -> Lineage:
    """As ``first_lineage_of_few``."""
    given = np.asarray(ids, np.uint64)
    tracked = given != UNTRACKED
    roots = given[tracked]
    count = len(roots)
    seeds = seed_array(roots, np.zeros(count, np.uint64))
    targets = np.full(count, target, np.uint64)
    return Lineage(
        offsets=np.concatenate([[0], np.cumsum(tracked)]).astype(np.int32),
        roots=roots,
        edges=edges(seeds, np.zeros(count, np.uint64), targets),
    )


def with_keys(lineage: Lineage, keys: Keys, copies: Ids | None, bolt: str) -> Lineage:
    """The lineage of tuples that ``bolt`` receives, with their keys."""
    count = len(keys)
    numbers = np.zeros(count, np.uint64) if copies is None else copies
    return replace(lineage, keys=child_keys(keys, np.ones(count, np.int64), numbers, bolt))


def join_anchors(parts: Sequence[Anchors]) -> Anchors:
    """The anchors of all emissions, in order."""
    if len(parts) == 1:
        return parts[0]
    return Anchors(
        counts=np.concatenate([part.counts for part in parts]),
        rows=np.concatenate([part.rows for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
    )


def join_lineages(lineages: Sequence[Lineage]) -> Lineage:
    """One lineage of all tuples, in order, each with each of its roots once."""
    if len(lineages) == 1:
        return merge_roots(lineages[0])
    if not lineages:
        return Lineage(
            offsets=np.zeros(1, np.int32),
            roots=np.zeros(0, np.uint64),
            edges=np.zeros(0, np.uint64),
        )
    counts = np.concatenate([lineage.counts for lineage in lineages])
    return merge_roots(
        Lineage(
            offsets=_offsets(counts),
            roots=np.concatenate([lineage.roots for lineage in lineages]),
            edges=np.concatenate([lineage.edges for lineage in lineages]),
            keys=join_keys(lineages),
        )
    )


def join_keys(lineages: Sequence[Lineage]) -> Keys | None:
    """The keys of all tuples, in order; None if none has one."""
    if all(lineage.keys is None for lineage in lineages):
        return None
    return np.concatenate(
        [
            np.zeros((len(lineage.counts), LANES), np.uint64)
            if lineage.keys is None
            else lineage.keys
            for lineage in lineages
        ]
    )


def merge_roots(lineage: Lineage) -> Lineage:
    """The same lineage with each root of a tuple once, its edges XORed together.

    An emission anchored to a tuple gets one edge in every root of it. If a root stood there twice,
    that edge would cancel itself out of the root's ack-val, and the tree would complete
    without the new tuple.
    """
    counts = lineage.counts
    if not (counts > 1).any():
        return lineage
    owner = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((lineage.roots, owner))
    owner = owner[order]
    roots = lineage.roots[order]
    starts = np.flatnonzero(
        np.concatenate([[True], (roots[1:] != roots[:-1]) | (owner[1:] != owner[:-1])])
    )
    return Lineage(
        offsets=_offsets(np.bincount(owner[starts], minlength=len(counts))),
        roots=roots[starts],
        edges=np.bitwise_xor.reduceat(lineage.edges[order], starts),
        keys=lineage.keys,
    )


def row_seeds(lineage: Lineage) -> Ids:
    """The identity of each tuple: the XOR of the seeds of its (root, edge) pairs, 0 for one
    that is not tracked.
    """
    seeds = np.zeros(len(lineage.offsets) - 1, np.uint64)
    pairs = seed_array(lineage.roots, lineage.edges)
    counts = lineage.counts
    if (counts == 1).all():
        return pairs
    tracked = counts > 0
    if tracked.any():
        seeds[tracked] = np.bitwise_xor.reduceat(pairs, lineage.offsets[:-1][tracked])
    return seeds


def child_lineage(
    lineage: Lineage, seeds: Ids, anchors: Anchors, target: int, bolt: str
) -> Lineage:
    """The lineage of emissions to ``target``, a task of ``bolt``: one edge per anchor, in every
    root of that anchor.

    ``lineage`` has each root of a tuple once, as ``join_lineages`` leaves it, and so has
    what this returns.
    """
    derived = edges(
        seeds[anchors.rows], anchors.positions, np.full(len(anchors.rows), target, np.uint64)
    )
    counts = lineage.counts[anchors.rows]
    owner = np.repeat(np.arange(len(anchors.counts)), anchors.counts)
    per_emission = np.bincount(owner, weights=counts, minlength=len(anchors.counts)).astype(
        np.int64
    )
    return merge_roots(
        Lineage(
            offsets=_offsets(per_emission),
            roots=lineage.roots[_expand(lineage.offsets[:-1][anchors.rows], counts)],
            edges=np.repeat(derived, counts),
            keys=None
            if lineage.keys is None
            else child_keys(lineage.keys[anchors.rows], anchors.counts, anchors.positions, bolt),
        )
    )


def fold(lineage: Lineage, acked: Rows, children: Sequence[Lineage], held: int = 0) -> Updates:
    """One XOR per root: of the acked tuples' own edges and of all edges anchored below.

    Every root is there, except roots of the first ``held`` tuples to which nothing happened.
    """
    parts = [_folded(child.roots, child.edges) for child in children]
    if not held and len(acked) == len(lineage.offsets) - 1:
        parts.append(_folded(lineage.roots, lineage.edges))
    else:
        mine = _pairs(lineage, acked)
        fresh = lineage.roots[lineage.offsets[held] :]
        parts += [
            _folded(lineage.roots[mine], lineage.edges[mine]),
            _folded(fresh, np.zeros(len(fresh), np.uint64)),
        ]
    roots, xors = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(roots, kind="stable")
    roots, xors = _folded(roots[order], xors[order])
    return Updates(roots=roots, xors=xors)


def _folded(roots: Ids, xors: Ids) -> tuple[Ids, Ids]:
    """Neighbours of one root made one: tuples of one tree lie side by side nearly always, and the
    rest is sorting.
    """
    changes = roots[1:] != roots[:-1]
    if changes.all():
        return roots, xors
    starts = np.concatenate([_FIRST, changes.nonzero()[0] + 1])
    return roots[starts], np.bitwise_xor.reduceat(xors, starts)


def roots_of(lineage: Lineage, row: int) -> list[int]:
    """The roots of one tuple."""
    roots: list[int] = lineage.roots[lineage.offsets[row] : lineage.offsets[row + 1]].tolist()
    return roots


def select(lineage: Lineage, rows: Rows) -> Lineage:
    """The lineage of some of the tuples."""
    pairs = _pairs(lineage, rows)
    return Lineage(
        offsets=_offsets(lineage.counts[rows]),
        roots=lineage.roots[pairs],
        edges=lineage.edges[pairs],
        keys=None if lineage.keys is None else lineage.keys[rows],
    )


def _pairs(lineage: Lineage, rows: Rows) -> Rows:
    return _expand(lineage.offsets[:-1][rows], lineage.counts[rows])


def _expand(starts: NDArray[np.integer], counts: NDArray[np.integer]) -> Rows:
    """The numbers starts[i] … starts[i] + counts[i] - 1, for each i in turn."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    expanded: Rows = np.arange(total) + np.repeat(starts.astype(np.int64) - (ends - counts), counts)
    return expanded


def _offsets(counts: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    return np.concatenate([_FIRST, counts.cumsum()]).astype(np.int32)
