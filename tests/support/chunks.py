"""Chunks of tuples for tests that look only at the roots."""

import numpy as np

from tiercel import Schema
from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, encode


def chunk(*roots):
    count = len(roots)
    lineage = Lineage(
        offsets=np.arange(count + 1, dtype=np.int32),
        roots=np.array(roots, np.uint64),
        edges=np.ones(count, np.uint64),
    )
    values = Schema.parse("n long").batch([[n] for n in range(count)])
    return encode(
        Chunk(
            route=Route(component="s", stream="default", source_task=1, target_task=2),
            values=values,
            lineage=lineage,
        )
    )
