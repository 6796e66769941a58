from datetime import timedelta
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from tiercel.acker.layout import LedgerSpec, ShardKeys
from tiercel.acker.ledger import Failure, Updates, canonical
from tiercel.acker.redis_feed import pack_failure, unpack_failures, unpack_roots
from tiercel.acker.redis_ledger import fields, groups_of, lifetimes, records, slices

IDS = st.integers(0, 2**64 - 1)


def keys(topology="words", shard=0):
    spec = LedgerSpec(
        topology=topology, urls=("redis://x",), shards=9, owners=2, message_timeout=None
    )
    return ShardKeys(spec, shard)


def names(shard_keys):
    return [shard_keys.mark, *shard_keys.feeds, shard_keys.tokens, shard_keys.receipt(b"")]


def test_a_failure_says_when_the_message_is_to_come_again():
    failures = [
        Failure(root=7, component="b", task=2, reason="busy", retry_after_s=2.5, blame=False),
        Failure(root=8, component="b", task=2, reason="busy", retry_after_s=0.0),
        Failure(root=9, component="b", task=2, reason="boom"),
    ]
    packed = b"".join(each.root.to_bytes(8) + pack_failure(each) for each in failures)
    assert unpack_failures(packed) == failures


@given(st.text(min_size=1), st.integers(0, 8))
def test_all_keys_of_a_shard_share_its_hash_tag(topology, shard):
    assert len({key_slot(key.encode()) for key in names(keys(topology, shard))}) == 1


@given(st.text(), st.text())
def test_two_topologies_share_no_key(first, second):
    assert (first == second) == bool(set(names(keys(first))) & set(names(keys(second))))


def test_shards_have_keys_of_their_own():
    assert not set(names(keys(shard=1))) & set(names(keys(shard=2)))


@given(st.sets(IDS))
def test_groups_cut_roots_by_their_high_bits_and_fields_give_the_rest(roots):
    ascending = np.array(sorted(roots), np.uint64)
    rebuilt = []
    groups = groups_of(ascending)
    for group in groups:
        packed = fields(ascending).tobytes()[5 * group.start : 5 * group.end]
        rebuilt += [
            int.from_bytes(group.high + packed[at : at + 5]) for at in range(0, len(packed), 5)
        ]
    assert rebuilt == sorted(roots)
    assert all(one.high < two.high and one.end == two.start for one, two in pairwise(groups))


def test_records_are_big_endian():
    packed = records(
        np.array([0x0102030405060708], np.uint64), np.array([0xF1F2F3F4F5F6F7F8], np.uint64)
    ).tobytes()
    assert packed.hex() == "0405060708" + "f1f2f3f4f5f6f7f8"
    assert (
        records(np.array([0x0102030405060708], np.uint64), np.array([0x0A0B]), width=2)
        .tobytes()
        .hex()
        == "04050607080a0b"
    )


def test_slices_together_are_the_whole():
    roots = np.arange(7001, dtype=np.uint64)
    parts = list(slices(canonical(Updates(roots=roots, xors=roots))))
    assert [part.roots.size for part in parts] == [3000, 3000, 1001]
    assert np.concatenate([part.xors for part in parts]).tolist() == roots.tolist()


@given(st.lists(st.tuples(IDS, st.text(), st.integers(0, 2**31), st.text(), st.booleans())))
def test_failures_survive_packing(told):
    failures = [
        Failure(root=root, component=name, task=task, reason=reason, reject=reject)
        for root, name, task, reason, reject in told
    ]
    packed = b"".join(failure.root.to_bytes(8) + pack_failure(failure) for failure in failures)
    assert unpack_failures(packed) == failures


@given(st.lists(IDS))
def test_roots_survive_packing(roots):
    assert unpack_roots(b"".join(root.to_bytes(8) for root in roots)) == roots


def test_everything_outlives_the_longest_wait_for_a_timeout():
    # A tree may take twice the timeout in a rotating map of two buckets.
    kept = lifetimes(timedelta(seconds=30))
    assert kept.entries_ms >= 2 * 30_000
    assert kept.receipts_ms >= kept.entries_ms
    assert lifetimes(None).entries_ms == 0
