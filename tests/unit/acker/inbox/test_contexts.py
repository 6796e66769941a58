"""The trace contexts behind a chunk."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks import chunk
from tiercel.acker.errors import BadChunkError
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.inbox.contexts import CONTEXT_BYTES, contexts_in, rows_with, written_contexts

SEEDS = st.integers(0, 2**64 - 1)
CONTEXTS = st.binary(min_size=1, max_size=CONTEXT_BYTES)


@given(st.dictionaries(SEEDS, st.lists(CONTEXTS, min_size=1, max_size=8).map(tuple)), st.binary())
def test_contexts_are_read_as_written(contexts, before):
    written = before + written_contexts(contexts, np.array(list(contexts), np.uint64))
    assert contexts_in(written) == (contexts or contexts_in(before))


def test_only_those_of_the_chunk_are_written():
    contexts = {1: (b"one",), 2: (b"two",)}
    assert contexts_in(written_contexts(contexts, np.array([2, 3], np.uint64))) == {2: (b"two",)}
    assert written_contexts(contexts, np.array([3], np.uint64)) == b""
    assert rows_with(contexts, np.array([3, 2, 1, 2], np.uint64)).tolist() == [1, 2, 3]


@given(st.binary(max_size=80))
def test_no_bytes_before_the_mark_do_more_than_be_refused(content):
    for payload in (
        content + struct.pack("<I8s", len(content), b"\0traces1"),
        content + struct.pack("<I8s", len(content) + 7, b"\0traces1"),
    ):
        try:
            found = contexts_in(payload)
        except (BadChunkError, struct.error):
            continue
        assert sum(len(each) for many in found.values() for each in many) <= len(content)


def test_a_damaged_end_makes_the_chunk_unreadable():
    payload = chunk(1, 2, 3) + struct.pack("<I8s", 1 << 30, b"\0traces1")
    with pytest.raises(BadChunkError):
        decode(payload)
