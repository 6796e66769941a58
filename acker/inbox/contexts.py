"""The trace contexts of tuples, as they travel behind a chunk.

Only a tuple whose trace is recorded has a context; ``spark_jobs.tracing`` writes and reads them, to
all others they are bytes. A chunk without any has not one byte more than without tracing.

Contexts are found by the *seed* of their tuple, which is derived from its trees and edges. So
nothing has to follow them when rows are selected, cut off or joined: a mapping may have contexts of
other tuples too, and ``written_contexts`` writes only those of the chunk.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tiercel.acker.errors import BadChunkError

# By seed: the context of the span from which the tuple came; of a tuple with several anchors, of
# each of them, at most MOST_CONTEXTS.
Contexts = Mapping[int, tuple[bytes, ...]]
MOST_CONTEXTS = 8
# Room for the two ids, the flags, and W3C's bound on a tracestate.
CONTEXT_BYTES = 25 + 512

# Behind the last entry: the length of all entries in bytes, and a mark.
_END = struct.Struct("<I8s")
_MARK = b"\0traces1"
# Before each context: its tuple's seed and its own length.
_ENTRY = struct.Struct("<QH")


def rows_with(contexts: Contexts, seeds: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the rows whose tuple, given by its seed, has a context."""
    if not contexts:
        return np.zeros(0, np.intp)
    # ``np.isin`` takes two to five times as long.
    known = np.sort(np.fromiter(contexts, np.uint64, len(contexts)))
    at = np.searchsorted(known, seeds)
    at[at == len(known)] = 0
    return np.flatnonzero(known[at] == seeds)


def written_contexts(contexts: Contexts, seeds: NDArray[np.uint64]) -> bytes:
    """Write the contexts of the tuples with these seeds; empty if none of them has one."""
    entries = b"".join(
        [
            _ENTRY.pack(seed, len(context)) + context
            for seed in seeds[rows_with(contexts, seeds)].tolist()
            for context in contexts[seed]
        ]
    )
    return entries + _END.pack(len(entries), _MARK) if entries else b""


def contexts_in(payload: bytes) -> Contexts | None:
    """Read the contexts at the end of a payload; None if there are none.

    Safe for a payload from any writer. Raises BadChunkError or struct.error for a damaged one.
    """
    end = len(payload) - _END.size
    if end < 0:
        return None
    length, mark = _END.unpack_from(payload, end)
    if mark != _MARK:
        return None
    if length > end:
        raise BadChunkError("its trace contexts are longer than it")
    found: dict[int, tuple[bytes, ...]] = {}
    at = end - length
    while at < end:
        seed, size = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size + size
        known = found.get(seed, ())
        if at > end or size > CONTEXT_BYTES or len(known) == MOST_CONTEXTS:
            raise BadChunkError("its trace contexts are damaged")
        found[seed] = (*known, payload[at - size : at])
    return found
