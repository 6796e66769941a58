from datetime import timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tiercel.acker.ids import RUN_LENGTH, RootIds, edge, edges, mix, mix_array, seed, seed_array

IDS = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 2**32 - 1)


def array(*ids):
    return np.array(ids, np.uint64)


def test_the_mix_is_the_published_splitmix64():
    # The first outputs of the reference implementation for the seed 1234567.
    gamma = 0x9E3779B97F4A7C15
    states = [(1234567 + step * gamma) % 2**64 for step in range(3)]
    assert [mix(state) for state in states] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(IDS, IDS, SMALL, SMALL)
def test_scalar_and_array_functions_agree(first, second, position, target):
    assert mix_array(array(first)).tolist() == [mix(first)]
    assert seed_array(array(first), array(second)).tolist() == [seed(first, second)]
    assert edges(array(first), array(position), array(target)).tolist() == [
        edge(first, position, target)
    ]


def test_every_input_bit_flips_every_output_bit_about_half_the_time():
    states = np.random.default_rng(1).integers(0, 2**64, 4000, np.uint64)
    for bit in range(64):
        flipped = mix_array(states) ^ mix_array(states ^ np.uint64(1 << bit))
        rates = np.unpackbits(flipped.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert 0.45 < rates.min() <= rates.max() < 0.55


def test_edges_of_neighbouring_anchors_positions_and_targets_are_all_different():
    seeds, positions, targets = np.meshgrid(np.arange(50), np.arange(50), np.arange(50))
    ids = edges(*(axis.ravel().astype(np.uint64) for axis in (seeds, positions, targets)))
    assert np.unique(ids).size == ids.size
    ones = np.unpackbits(ids.view(np.uint8)).mean()
    assert 0.499 < ones < 0.501


def test_an_edge_is_never_zero():
    # The mix is a bijection: exactly one state gives 0, and inverting it finds the anchor.
    zero = (-0x9E3779B97F4A7C15) % 2**64
    assert mix(zero) == 0
    unlucky = zero ^ mix(3 << 32 | 5)
    assert edge(unlucky, 3, 5) != 0
    assert edges(array(unlucky), array(3), array(5)).tolist() == [edge(unlucky, 3, 5)]


def test_array_functions_leave_their_arguments_alone():
    given_ids = array(1, 2)
    edges(given_ids, given_ids, given_ids)
    seed_array(given_ids, given_ids)
    assert given_ids.tolist() == [1, 2]


def test_root_ids_carry_the_generation_in_their_top_byte():
    clock = Clock(0)
    ids = RootIds(timedelta(seconds=30), clock)
    for now, generation in (
        (0, 0),
        (29.9, 0),
        (30, 1),
        (30 * 255, 255),
        (30 * 256, 0),
        (30 * 259 + 1, 3),
    ):
        clock.now = now
        assert {root >> 56 for root in ids.draw(3)} == {generation}


def test_root_ids_are_all_different_and_run_by_run_share_a_bucket():
    drawn = [root for _ in range(100) for root in RootIds(timedelta(days=9000), Clock(0)).draw(997)]
    assert len(set(drawn)) == len(drawn)
    ids = RootIds(timedelta(days=9000), Clock(0))
    in_turn = ids.draw(1) + ids.draw(RUN_LENGTH - 1) + ids.draw(RUN_LENGTH)
    highs = [root >> 40 for root in in_turn]
    assert len(set(highs[:RUN_LENGTH])) == len(set(highs[RUN_LENGTH:])) == 1
    assert highs[RUN_LENGTH] == (highs[0] + 1) % 2**16


def test_the_low_bits_of_root_ids_are_uniform():
    low = np.array(RootIds(timedelta(seconds=30)).draw(50_000), np.uint64) & np.uint64(2**40 - 1)
    rates = [float(((low >> np.uint64(bit)) & np.uint64(1)).mean()) for bit in range(40)]
    assert 0.48 < min(rates) <= max(rates) < 0.52


def test_drawing_none_is_possible():
    assert RootIds(timedelta(seconds=30)).draw(0) == []
