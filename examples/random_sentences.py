"""Timeouts: ``tiercel run tiercel.examples.random_sentences:topology``.

The spout emits random sentences, and keeps each until it is acked. A bolt forgets some words: it
neither acks nor fails them. So after ``message_timeout_secs`` the sentence fails with the reason
``timeout``, and the spout emits it again.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping
from typing import Any

from tiercel import (
    BasicBolt,
    BasicCollector,
    Bolt,
    Config,
    OutputCollector,
    Spout,
    SpoutCollector,
    SpoutContext,
    Topology,
    TopologyBuilder,
    Tuple,
)

SENTENCES = ("falcons hunt by day", "owls hunt by night", "a tiercel hunts whenever it is hungry")
PAUSE_S = 0.5


class RandomSentenceSpout(Spout):
    """Emits a random sentence now and then.

    A failed sentence is emitted again as soon as ``fail`` is called.
    """

    output_fields = "sentence string"

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:  # noqa: ARG002 - needs neither
        self.pending: dict[uuid.UUID, str] = {}
        self.next_at = 0.0

    def next_tuple(self, collector: SpoutCollector) -> None:
        # Keep the collector: ack and fail are called on the same thread, and may emit.
        self.collector = collector
        if time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + PAUSE_S
            msg_id = uuid.uuid4()
            self.pending[msg_id] = random.choice(SENTENCES)
            collector.emit([self.pending[msg_id]], msg_id)

    def ack(self, msg_id: uuid.UUID) -> None:
        print(f"done: {self.pending.pop(msg_id)}", flush=True)  # noqa: T201 - what there is to see

    def fail(self, msg_id: uuid.UUID, reason: str = "") -> None:
        print(f"again: {self.pending[msg_id]} ({reason})", flush=True)  # noqa: T201 - what there is to see
        self.collector.emit([self.pending[msg_id]], msg_id)


class SplitSentence(BasicBolt):
    """Anchors and acks by hand."""

    output_fields = "word string"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        for word in tup["sentence"].split():
            collector.emit([word])


class Forget(Bolt):
    """Forgets one word in ten."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if random.random() > 1 / 10:
            collector.ack(tup)


def topology() -> Topology:
    builder = TopologyBuilder("random-sentences", Config(message_timeout_secs=3))
    builder.set_spout("sentences", RandomSentenceSpout())
    builder.set_bolt("split", SplitSentence()).shuffle_grouping("sentences")
    builder.set_bolt("forget", Forget(), parallelism=2).shuffle_grouping("split")
    return builder.build()
