"""The shape of a topology: what its processes must agree on to understand each other's tuples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.topology.graph import Topology

# Of what lies in Redis: chunks, keys of the ledger, of inboxes and of states. Raise it when one
# of them changes.
_FORMAT = 2


def shape_of(topology: Topology) -> str:
    """Eight hexadecimal digits, equal for topologies whose processes may be mixed.

    It covers components, their tasks, streams and subscriptions, and the ledger's shards. What
    bolts do is their own business.
    """
    spouts = [
        [name, spec.parallelism, _streams(spec.streams)] for name, spec in topology.spouts.items()
    ]
    bolts = [
        [name, spec.parallelism, _streams(spec.streams)]
        + [
            [each.component, each.stream, type(each.grouping).__qualname__]
            for each in spec.subscriptions
        ]
        for name, spec in topology.bolts.items()
    ]
    text = json.dumps([_FORMAT, topology.config.ackers, spouts, bolts])
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _streams(streams: Mapping[str, Schema]) -> list[list[str]]:
    return [
        [name, *(f"{field.name} {field.type}" for field in schema.fields)]
        for name, schema in sorted(streams.items())
    ]
