"""The emissions that leave a bolt task at the end of a step, and the step's effect on the trees.

All functions are pure, in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.ids import LANES, Keys, child_keys, edge, edges, has_key, seed, seed_array
from tiercel.acker.inbox.chunk import Lineage, Rows
from tiercel.acker.inbox.contexts import MOST_CONTEXTS, Contexts, rows_with
from tiercel.acker.ledger import Ids, Updates
from tiercel.queues.errors import SchemaError
from tiercel.spark_jobs.emitting.outputs import Anchors, TaskOutput, expanded
from tiercel.spark_jobs.emitting.record import Record

# Stands for the root of a spout tuple that is not tracked.
UNTRACKED = 0
_FIRST = np.zeros(1, np.int64)
# The part of a key's third lane that is the age of its message.
_SINCE = np.uint64((1 << 32) - 1)


def first_lineage_of_few(given: Sequence[int], target: int) -> Lineage:
    """Return the first edges of the trees.

    An edge is derived from the root and the target, so the copies of a tuple have different edges.
    """
    roots = [root for root in given if root != UNTRACKED]
    return Lineage(
        offsets=np.array([0, *accumulate([root != UNTRACKED for root in given])], np.int32),
        roots=np.array(roots, np.uint64),
        edges=np.array([edge(seed(root, 0), 0, target) for root in roots], np.uint64),
    )


def first_lineage_of_many(ids: Sequence[int] | Ids, target: int) -> Lineage:
    """Return the same as ``first_lineage_of_few``, computed in numpy."""
    given = np.asarray(ids, np.uint64)
    tracked = given != UNTRACKED
    roots = given[tracked]
    count = len(roots)
    seeds = seed_array(roots, np.zeros(count, np.uint64))
    return Lineage(
        offsets=np.concatenate([[0], np.cumsum(tracked)]).astype(np.int32),
        roots=roots,
        edges=edges(seeds, np.zeros(count, np.uint64), np.uint64(target)),
    )


def with_keys(lineage: Lineage, keys: Keys, copies: Ids | None, bolt: str) -> Lineage:
    """Return the lineage of tuples that ``bolt`` receives, with their keys."""
    count = len(keys)
    numbers = np.zeros(count, np.uint64) if copies is None else copies
    return replace(lineage, keys=child_keys(keys, np.ones(count, np.int64), numbers, bolt))


def with_contexts(lineage: Lineage, contexts: Mapping[int, bytes]) -> Lineage:
    """Return the lineage of a spout's tuples with the trace contexts that their roots have."""
    known = np.fromiter(contexts, np.uint64, len(contexts))
    places = np.flatnonzero(np.isin(lineage.roots, known))
    if not places.size:
        return lineage
    roots, edges_ = lineage.roots[places], lineage.edges[places]
    # Such a tuple is in one tree.
    seeds = seed_array(roots, edges_).tolist()
    found = {seed: (contexts[root],) for seed, root in zip(seeds, roots.tolist(), strict=True)}
    return replace(lineage, contexts=found)


def join_anchors(parts: Sequence[Anchors]) -> Anchors:
    """Concatenate anchors."""
    if len(parts) == 1:
        return parts[0]
    return Anchors(
        counts=np.concatenate([part.counts for part in parts]),
        rows=np.concatenate([part.rows for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
    )


def join_lineages(lineages: Sequence[Lineage]) -> Lineage:
    """Concatenate lineages, merging duplicate roots of a tuple."""
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
            contexts=_join_contexts(lineages),
        )
    )


def _join_contexts(lineages: Sequence[Lineage]) -> Contexts | None:
    """Merge the trace contexts of lineages; None if no tuple has one."""
    parts = [lineage.contexts for lineage in lineages if lineage.contexts is not None]
    return {seed: found for part in parts for seed, found in part.items()} if parts else None


def join_keys(lineages: Sequence[Lineage]) -> Keys | None:
    """Concatenate the keys of lineages; None if no tuple has a key."""
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
    """Merge duplicate roots of a tuple, XORing their edges together.

    An emission anchored to a tuple gets one edge in every root of the tuple. If a root were listed
    twice, that edge would cancel itself out of the root's ack-val, and the tree would complete
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
        contexts=lineage.contexts,
    )


def child_lineage(
    lineage: Lineage, seeds: Ids, anchors: Anchors, target: int, bolt: str
) -> Lineage:
    """Return the lineage of emissions to ``target``, a task of ``bolt``: one edge per anchor, in
    every root of that anchor.

    Neither ``lineage`` nor the result has duplicate roots of a tuple, see ``join_lineages``.
    """
    child = _child_lineage(lineage, seeds, anchors, target, bolt)
    if lineage.contexts is None:
        return child
    return replace(child, contexts=_child_contexts(lineage.contexts, seeds, anchors, child))


def _child_lineage(
    lineage: Lineage, seeds: Ids, anchors: Anchors, target: int, bolt: str
) -> Lineage:
    rows = anchors.rows
    counts = lineage.counts[rows]
    derived = edges(seeds[rows], anchors.positions, np.uint64(target))
    keys = lineage.keys
    if keys is not None:
        keys = child_keys(keys[rows], anchors.counts, anchors.positions, bolt)
        if anchors.keys is not None:
            keys = np.where(has_key(anchors.keys)[:, None], _own(anchors.keys, keys, bolt), keys)
    emissions = len(anchors.counts)
    if len(rows) == emissions and (counts == 1).all() and (anchors.counts == 1).all():
        # Nearly always each emission has one anchor, and the anchor one tree.
        return Lineage(
            offsets=np.arange(emissions + 1, dtype=np.int32),
            roots=lineage.roots[lineage.offsets[rows]],
            edges=derived,
            keys=keys,
        )
    owner = np.repeat(np.arange(emissions), anchors.counts)
    per_emission = np.bincount(owner, weights=counts, minlength=emissions)
    child = Lineage(
        offsets=_offsets(per_emission),
        roots=lineage.roots[_pairs(lineage, rows)],
        edges=np.repeat(derived, counts),
        keys=keys,
    )
    return merge_roots(child)


def _own(keys: Keys, of_anchors: Keys, bolt: str) -> Keys:
    """Return the keys of emissions whose keys do not depend on their anchors, as ``bolt`` receives
    them. The age of their messages is that of the anchors.
    """
    count = len(keys)
    made = child_keys(keys, np.ones(count, np.int64), np.zeros(count, np.uint64), bolt)
    made[:, 2:] = 0
    made[:, 2] = of_anchors[:, 2] & _SINCE
    return made


def _child_contexts(
    contexts: Contexts, seeds: Ids, anchors: Anchors, child: Lineage
) -> Contexts | None:
    """Return the trace contexts of emissions, which their anchors have."""
    given = seeds[anchors.rows]
    found: dict[int, tuple[bytes, ...]] = {}
    if not (traced := rows_with(contexts, given)).size:
        return None
    owner = np.repeat(np.arange(len(anchors.counts)), anchors.counts)
    children = child.seeds
    for at in traced.tolist():
        own = int(children[owner[at]])
        if own:  # 0: in no tree
            known = found.get(own, ())
            new = contexts[int(given[at])]
            found[own] = (*known, *(each for each in new if each not in known))[:MOST_CONTEXTS]
    return found or None


def fold(lineage: Lineage, acked: Rows, children: Sequence[Lineage], held: int = 0) -> Updates:
    """Return one XOR per root, over the edges of the acked tuples and of all ``children``.

    Every root is included, except unchanged roots of the first ``held`` tuples.
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
    """XOR adjacent entries of one root together: tuples of a tree are nearly always adjacent, so
    little is left to sort.
    """
    changes = roots[1:] != roots[:-1]
    if changes.all():
        return roots, xors
    starts = np.concatenate([_FIRST, changes.nonzero()[0] + 1])
    return roots[starts], np.bitwise_xor.reduceat(xors, starts)


def roots_of(lineage: Lineage, row: int) -> list[int]:
    """Return the roots of one tuple."""
    roots: list[int] = lineage.roots[lineage.offsets[row] : lineage.offsets[row + 1]].tolist()
    return roots


def select(lineage: Lineage, rows: Rows) -> Lineage:
    """Return the lineage of some of the tuples."""
    pairs = _pairs(lineage, rows)
    return Lineage(
        offsets=_offsets(lineage.counts[rows]),
        roots=lineage.roots[pairs],
        edges=lineage.edges[pairs],
        keys=None if lineage.keys is None else lineage.keys[rows],
        contexts=lineage.contexts,
    )


def without_trees(lineage: Lineage, rows: Sequence[int]) -> Lineage:
    """Return the lineage with these rows removed from all trees."""
    if not rows:
        return lineage
    stays = np.ones(len(lineage.counts), bool)
    stays[rows] = False
    pairs = np.repeat(stays, lineage.counts)
    return Lineage(
        offsets=_offsets(lineage.counts * stays),
        roots=lineage.roots[pairs],
        edges=lineage.edges[pairs],
        keys=lineage.keys,
        contexts=lineage.contexts,
    )


def _pairs(lineage: Lineage, rows: Rows) -> NDArray[np.integer[Any]]:
    firsts = lineage.offsets[:-1][rows]
    counts = lineage.counts[rows]
    return firsts if (counts == 1).all() else expanded(firsts, counts)


def _offsets(counts: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    return np.concatenate([_FIRST, counts.cumsum()]).astype(np.int32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Departure:
    """Tuples that one task emitted to another on one stream."""

    stream: str
    target: int
    values: pa.RecordBatch
    lineage: Lineage


@dataclass(frozen=True, kw_only=True, slots=True)
class _Typed:
    """Emissions whose values have the stream's types; ``kept`` has their places in the output."""

    task_output: TaskOutput
    anchors: Anchors
    kept: Rows
    values: pa.RecordBatch


def departures(
    record: Record, lineage: Lineage, seeds: Ids, *, basic: bool, batch: bool = False
) -> list[Departure]:
    """Return the emissions that leave a task, whose tuples have this lineage and these seeds.

    An emission with a value of a wrong type is dropped, and its anchors fail. A BasicBolt's
    emission for a failed tuple is dropped: the tuple's tree fails, and its message is redelivered.
    An emission of a BatchBolt or of an ordered bolt is dropped if all its anchors failed. Other
    emissions of a Bolt leave even then, because other trees may depend on them. The record then
    counts only the emissions that leave.
    """
    if record.aborted:
        return []
    # Check all types first: a bad value on one stream fails its tuple, whose emissions on other
    # streams must then be dropped.
    typed = [
        _typed(record, task_output)
        for task_output in record.outputs.task_outputs
        if task_output.values
    ]
    if basic:
        counted = [one.task_output.values for one in typed if one.task_output.counts]
        record.emitted += sum(map(len, counted))
    if record.reasons and (basic or batch or record.in_order):
        failed = np.zeros(len(seeds), bool)
        failed[list(record.reasons)] = True
        if record.in_order:
            record.replayed.update(row for one in typed for row in one.anchors.tied(failed))
        typed = [_surviving(one, failed) for one in typed]
    if record.reasons or not basic:
        record.emitted -= _stayed(record, typed, basic=basic)
    record.transferred = sum([len(one.kept) for one in typed])
    return [_departure(one, lineage, seeds) for one in typed if one.kept.size]


def _stayed(record: Record, typed: list[_Typed], *, basic: bool) -> int:
    """Count the emissions that are dropped."""
    if basic:
        # Each emission has one anchor, which a value of a wrong type has failed.
        return sum(tup.emitted for tup in record.tuples if tup.row in record.reasons)
    numbers: set[int] = set()
    for one in typed:
        if len(one.kept) < len(one.task_output.numbers):
            numbers |= set(one.task_output.numbers) - {
                one.task_output.numbers[kept] for kept in one.kept.tolist()
            }
    return len(numbers)


def _surviving(one: _Typed, failed: NDArray[np.bool_]) -> _Typed:
    """Keep the emissions with an anchor that has not failed, or with no anchor."""
    goes = one.anchors.go(failed)[one.kept]
    return replace(one, kept=one.kept[goes], values=one.values.filter(pa.array(goes)))


def _departure(one: _Typed, lineage: Lineage, seeds: Ids) -> Departure:
    output = one.task_output
    child = child_lineage(lineage, seeds, one.anchors, output.target, output.bolt)
    if one.kept.size < len(one.anchors.counts):
        child = select(child, one.kept)
    return Departure(stream=output.stream, target=output.target, values=one.values, lineage=child)


def _typed(record: Record, task_output: TaskOutput) -> _Typed:
    anchors = task_output.anchors()
    try:
        values = task_output.schema.batch(task_output.values)
    except SchemaError:
        bad = _bad(task_output)
    else:
        return _Typed(
            task_output=task_output,
            anchors=anchors,
            kept=np.arange(len(task_output.values)),
            values=values,
        )
    owner = np.repeat(np.arange(len(anchors.counts)), anchors.counts)
    by_row = {tup.row: tup for tup in record.tuples}
    for emission, error in bad.items():
        reason = f"stream {task_output.stream!r}: {error}"
        record.report(reason)
        for row in anchors.rows[owner == emission].tolist():
            record.fail(by_row[row], reason)
    good = [emission for emission in range(len(task_output.values)) if emission not in bad]
    values = task_output.schema.batch([task_output.values[emission] for emission in good])
    return _Typed(
        task_output=task_output, anchors=anchors, kept=np.array(good, np.int64), values=values
    )


def _bad(task_output: TaskOutput) -> dict[int, str]:
    """Return the emissions with a value of a wrong type, each with its error."""
    bad = {}
    for emission, values in enumerate(task_output.values):
        try:
            task_output.schema.check(values)
        except SchemaError as error:
            bad[emission] = str(error).partition("\n")[0]
    return bad
