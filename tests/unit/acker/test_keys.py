"""Keys follow from the identity and the path of a tuple, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.acker.ids import (
    LANES,
    NO_KEY,
    KeyOrigin,
    Said,
    as_keys,
    child_keys,
    has_key,
    lanes_of,
    said_by,
)


def keys_of(*ids: bytes | None, content: int = 0, since: int = 0):
    origin = KeyOrigin("topology", "spout")
    told = Said(content, since)
    return as_keys([NO_KEY if one is None else origin.key(one, told, "s") for one in ids])


def children(parents, counts, positions, bolt="bolt"):
    return child_keys(parents, np.array(counts, np.int64), np.array(positions, np.uint64), bolt)


def said(keys):
    [lanes] = lanes_of(keys)
    return said_by(lanes)


@given(st.lists(st.binary(max_size=40), unique=True, min_size=1, max_size=50))
def test_equal_identities_have_equal_keys_and_others_have_others(ids) -> None:
    once, again = keys_of(*ids), keys_of(*ids)
    assert (once == again).all()
    assert len({bytes(row) for row in once[:, :2]}) == len(ids)


@pytest.mark.parametrize(
    ("topology", "component", "stream"),
    [("other", "spout", "s"), ("topology", "other", "s"), ("topology", "spout", "other")],
)
def test_one_identity_at_two_places_is_two_keys(topology, component, stream) -> None:
    mine = KeyOrigin("topology", "spout").key(b"m", Said(), "s")
    assert KeyOrigin(topology, component).key(b"m", Said(), stream) != mine


def test_names_do_not_run_into_each_other() -> None:
    assert KeyOrigin("ab", "c").key(b"", Said(), "d") != KeyOrigin("a", "bc").key(b"", Said(), "d")


@given(
    st.sets(
        st.tuples(
            st.integers(0, 3), st.integers(0, 2**32 - 1), st.integers(0, 5), st.sampled_from("AB")
        ),
        min_size=1,
        max_size=60,
    )
)
def test_each_emission_and_each_copy_has_a_key_of_its_own(ways) -> None:
    parents = keys_of(b"0", b"1", b"2", b"3")
    found = {
        children(parents[parent : parent + 1], [1], [copy << 32 | position], bolt).tobytes()
        for parent, position, copy, bolt in ways
    }
    assert len(found) == len(ways)
    assert not found & {row.tobytes() for row in parents}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.randoms())
def test_the_order_of_anchors_makes_no_difference_and_their_number_does(anchors, random) -> None:
    parents = keys_of(*(b"%d" % one for one in range(6)))
    positions = list(range(len(anchors)))
    pairs = list(zip(anchors, positions, strict=True))
    random.shuffle(pairs)
    mine = children(parents[anchors], [len(anchors)], positions)
    shuffled = children(
        parents[[anchor for anchor, _ in pairs]], [len(pairs)], [at for _, at in pairs]
    )
    assert (mine == shuffled).all()
    twice = children(parents[[*anchors, anchors[0]]], [len(anchors) + 1], [*positions, 99])
    assert (mine != twice).any()


@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=4), min_size=1, max_size=8)
)
def test_what_has_an_anchor_without_a_key_or_none_has_no_key(emissions) -> None:
    anchors = [None if one is None else b"%d" % one for each in emissions for one in each]
    parents = keys_of(*anchors) if anchors else np.zeros((0, LANES), np.uint64)
    made = children(parents, [len(each) for each in emissions], [0] * len(anchors))
    assert has_key(made).tolist() == [bool(each) and None not in each for each in emissions]
    assert [lanes is not None for lanes in lanes_of(made)] == has_key(made).tolist()
    one_by_one = [
        children(
            keys_of(*(None if one is None else b"%d" % one for one in each)),
            [len(each)],
            [0] * len(each),
        )
        if each
        else np.zeros((1, LANES), np.uint64)
        for each in emissions
    ]
    assert (made == np.concatenate(one_by_one)).all()


def test_what_is_said_of_the_message_goes_down_the_tree() -> None:
    told = Said(content=7 << 100, since=1_700_000_000, short=5)
    parents = as_keys([KeyOrigin("topology", "spout").key(b"a", told, "s")])
    assert said(children(parents, [1], [5])) == told


def test_a_join_is_as_old_as_its_oldest_message_and_says_what_all_say() -> None:
    fresh = keys_of(b"a", content=7)
    old = keys_of(b"b", content=8, since=1_600_000_000)
    unknown = keys_of(b"c", since=1_700_000_000)
    both = children(np.concatenate([fresh, old]), [2], [0, 0])
    both_say = said(both)
    assert both_say.content > 1 << 64
    assert both_say.short not in {0, 7, 8}
    assert both_say.since == 1_600_000_000
    all_three = children(np.concatenate([fresh, unknown, old]), [3], [0, 0, 0])
    assert said(all_three) == Said(since=1_600_000_000)


def test_a_body_is_compared_with_what_is_remembered_of_it() -> None:
    now = Said(content=7 << 100, short=7)
    assert not now.contradicts(7 << 100)
    assert now.contradicts(8 << 100)
    # Written by an older version, which kept 32 bits.
    assert not now.contradicts(7)
    assert now.contradicts(8)
    # One of the two contents is unknown.
    assert not now.contradicts(0)
    assert not Said().contradicts(8)
    assert not Said().contradicts(8 << 100)


@given(st.integers(1, 2**32), st.integers(1, 2**32))
def test_any_number_of_a_spout_of_ones_own_tells_two_messages_apart(one, other) -> None:
    mine, others = (said(keys_of(b"a", content=each)) for each in (one, other))
    assert mine.contradicts(others.content) == (one != other)
    # An older version kept the lower 32 bits of the number.
    assert mine.short == one % 2**32


def test_keys_are_spread_over_all_their_bits() -> None:
    parents = np.repeat(keys_of(b"m"), 4096, axis=0)
    made = children(parents, [1] * 4096, range(4096))
    bits = np.unpackbits(made[:, :2].astype("<u8").view(np.uint8), axis=1)
    assert abs(bits.mean(axis=0) - 0.5).max() < 0.05


def test_the_keys_are_those_that_running_topologies_have_remembered() -> None:
    """If they changed, every remembered message would take effect once more."""
    [first] = lanes_of(children(keys_of(b"order-17"), [1], [0], "book"))
    assert first is not None
    assert first[:16].hex() == "d8a5f9709e31b362d657509a2f0da040"
