"""The fold in numpy equals a naive loop over dictionaries."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tiercel.acker.ids import edge, seed
from tiercel.acker.inbox.chunk import Lineage
from tiercel.spark_jobs.emitting.fold import (
    child_lineage,
    fold,
    join_lineages,
    merge_roots,
    roots_of,
    select,
)
from tiercel.spark_jobs.emitting.outputs import Anchors

ROOTS = st.sampled_from([1, 7, 1 << 63, (1 << 64) - 1])
IDS = st.integers(1, (1 << 64) - 1)
TUPLES = st.lists(st.lists(st.tuples(ROOTS, IDS), max_size=4), max_size=6)


def lineage_of(tuples: list[list[tuple[int, int]]]) -> Lineage:
    return Lineage(
        offsets=np.cumsum([0, *map(len, tuples)]).astype(np.int32),
        roots=np.array([root for pairs in tuples for root, _ in pairs], np.uint64),
        edges=np.array([edge for pairs in tuples for _, edge in pairs], np.uint64),
    )


def tuples_of(lineage: Lineage) -> list[dict[int, int]]:
    """Return each tuple as {root: edge}; no root occurs twice."""
    found = []
    for start, end in zip(lineage.offsets[:-1], lineage.offsets[1:], strict=True):
        pairs = list(
            zip(lineage.roots[start:end].tolist(), lineage.edges[start:end].tolist(), strict=True)
        )
        assert len(dict(pairs)) == len(pairs)
        found.append(dict(pairs))
    return found


def naive_merge(pairs: list[tuple[int, int]]) -> dict[int, int]:
    merged: dict[int, int] = {}
    for root, id_ in pairs:
        merged[root] = merged.get(root, 0) ^ id_
    return merged


def naive_seed(tup: dict[int, int]) -> int:
    total = 0
    for root, id_ in tup.items():
        total ^= seed(root, id_)
    return total


@st.composite
def works(draw):
    """Draw tuples, the acked ones, and emissions to some targets: each a list of input rows, one
    per anchor.
    """
    tuples = draw(TUPLES)
    rows = st.integers(0, len(tuples) - 1) if tuples else st.nothing()
    acked = draw(st.lists(rows, unique=True)) if tuples else []
    anchored = st.lists(rows, max_size=4) if tuples else st.just([])
    emissions = draw(st.lists(st.tuples(st.integers(1, 3), anchored), max_size=6))
    return tuples, acked, emissions


def naive_children(tuples, emissions):
    """Return {target: [lineage of each emission]}, following the contract of the edges."""
    emitted = [0] * len(tuples)
    children: dict[int, list[dict[int, int]]] = {}
    for target, anchors in emissions:
        pairs = []
        for row in anchors:
            derived = edge(naive_seed(tuples[row]), emitted[row], target)
            emitted[row] += 1
            pairs += [(root, derived) for root in tuples[row]]
        children.setdefault(target, []).append(naive_merge(pairs))
    return children


def folded_children(lineage: Lineage, emissions) -> dict[int, Lineage]:
    emitted: dict[int, int] = {}
    recorded: dict[int, list[list[tuple[int, int]]]] = {}
    for target, anchors in emissions:
        entry = []
        for row in anchors:
            entry.append((row, emitted.get(row, 0)))
            emitted[row] = emitted.get(row, 0) + 1
        recorded.setdefault(target, []).append(entry)
    seeds = lineage.seeds
    return {
        target: child_lineage(
            lineage,
            seeds,
            Anchors(
                counts=np.array([len(entry) for entry in entries], np.int64),
                rows=np.array([row for entry in entries for row, _ in entry], np.int64),
                positions=np.array(
                    [position for entry in entries for _, position in entry], np.uint64
                ),
            ),
            target,
            f"bolt-{target}",
        )
        for target, entries in recorded.items()
    }


@given(works())
def test_children_and_updates_are_those_of_a_naive_loop(work) -> None:
    pairs, acked, emissions = work
    lineage = join_lineages([lineage_of(pairs)])
    tuples = [naive_merge(one) for one in pairs]
    assert tuples_of(lineage) == tuples
    children = folded_children(lineage, emissions)
    expected = naive_children(tuples, emissions)
    assert {target: tuples_of(child) for target, child in children.items()} == expected

    xors = {root: 0 for one in tuples for root in one}
    for row in acked:
        for root, id_ in tuples[row].items():
            xors[root] ^= id_
    for lineages in expected.values():
        for one in lineages:
            for root, id_ in one.items():
                xors[root] ^= id_
    updates = fold(lineage, np.array(acked, np.int64), list(children.values()))
    assert list(zip(updates.roots.tolist(), updates.xors.tolist(), strict=True)) == sorted(
        xors.items()
    )
    assert updates.roots.dtype == updates.xors.dtype == np.uint64


@given(st.lists(TUPLES, max_size=4))
def test_lineages_are_joined_in_order(parts) -> None:
    joined = join_lineages([lineage_of(part) for part in parts])
    assert tuples_of(joined) == [naive_merge(pairs) for part in parts for pairs in part]


@given(TUPLES.filter(bool), st.data())
def test_some_tuples_keep_their_lineage(tuples, data) -> None:
    rows = data.draw(st.lists(st.integers(0, len(tuples) - 1)))
    lineage = merge_roots(lineage_of(tuples))
    assert tuples_of(select(lineage, np.array(rows, np.int64))) == [
        naive_merge(tuples[row]) for row in rows
    ]
    assert [roots_of(lineage, row) for row in range(len(tuples))] == [
        sorted(naive_merge(pairs)) for pairs in tuples
    ]


@given(TUPLES)
def test_a_tuple_s_identity_does_not_depend_on_the_order_of_its_roots(tuples) -> None:
    forward, backward = (
        merge_roots(lineage_of([pairs[::step] for pairs in tuples])) for step in (1, -1)
    )
    assert forward.seeds.tolist() == backward.seeds.tolist()


def test_what_is_anchored_to_a_join_stays_in_its_tree() -> None:
    """Two branches of one root are joined: an edge put into that root twice would cancel itself out
    of the ack-val.
    """
    branches = lineage_of([[(7, 11)], [(7, 12)]])
    both = Anchors(counts=np.array([2]), rows=np.array([0, 1]), positions=np.zeros(2, np.uint64))
    join = child_lineage(branches, branches.seeds, both, 5, "joined")
    one = Anchors(counts=np.array([1]), rows=np.array([0]), positions=np.zeros(1, np.uint64))
    below = child_lineage(join, join.seeds, one, 6, "below")
    updates = fold(join, np.array([], np.int64), [below])
    assert updates.roots.tolist() == [7]
    assert updates.xors.tolist() == below.edges.tolist() != [0]
