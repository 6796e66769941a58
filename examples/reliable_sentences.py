"""A custom spout that replays failed messages.

``tiercel run tiercel.examples.reliable_sentences:topology``.

No queue holds these sentences, so the spout must remember each sentence until it gets the outcome.
Watch the ``again`` lines: each is a sentence with a failed word, which is emitted again. Sooner or
later each sentence is ``done``.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any

from tiercel import (
    Bolt,
    OutputCollector,
    Spout,
    SpoutCollector,
    SpoutContext,
    Topology,
    TopologyBuilder,
    Tuple,
)

SENTENCES = (
    "a tiercel is a male falcon",
    "a kestrel is a small one",
    "no falcon loses the prey it carries",
    "a falcon picks up the prey it drops",
)
PAUSE_S = 0.2


class ReliableSentenceSpout(Spout):
    """Emits sentences for ever, each with its own message id.

    A failed sentence is emitted again with the same id.
    """

    output_fields = "sentence string"

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:  # noqa: ARG002 - needs no settings
        self.name = f"{context.component} {context.task_index}"
        self.sentences = itertools.cycle(SENTENCES)
        self.pending: dict[uuid.UUID, str] = {}
        self.failed: deque[uuid.UUID] = deque()
        self.next_at = 0.0

    def next_tuple(self, collector: SpoutCollector) -> None:
        if self.failed:
            msg_id = self.failed.popleft()
            collector.emit([self.pending[msg_id]], msg_id)
        # Check the clock and return instead of sleeping: ack and fail are called on this thread.
        elif time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + PAUSE_S
            msg_id = uuid.uuid4()
            self.pending[msg_id] = next(self.sentences)
            # The id makes it reliable: without one the tuple is not tracked, and neither ack nor
            # fail is called.
            collector.emit([self.pending[msg_id]], msg_id)

    # One of ack and fail is called per emission, on the task that emitted the sentence.

    def ack(self, msg_id: uuid.UUID) -> None:
        print(f"{self.name}: done: {self.pending.pop(msg_id)}", flush=True)  # noqa: T201 - what there is to see

    def fail(self, msg_id: uuid.UUID, reason: str = "") -> None:
        print(f"{self.name}: again: {self.pending[msg_id]} ({reason})", flush=True)  # noqa: T201 - what there is to see
        self.failed.append(msg_id)


class SplitSentence(Bolt):
    """Anchors and acks by hand.

    A ``BasicBolt`` would do both by itself; see ``examples/word_count.py``.
    """

    output_fields = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        for word in tup["sentence"].split():
            # The anchor ties the word to its sentence: if the word fails, so does the sentence.
            collector.emit([word], anchors=tup)
        collector.ack(tup)


class Stumble(Bolt):
    """Fails one word in twenty, for the sake of the example."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if random.random() < 1 / 20:
            collector.fail(tup, f"stumbled over {tup['word']!r}")
        else:
            collector.ack(tup)


def topology() -> Topology:
    builder = TopologyBuilder("reliable-sentences")
    builder.set_spout("sentences", ReliableSentenceSpout(), parallelism=2)
    builder.set_bolt("split", SplitSentence()).shuffle_grouping("sentences")
    builder.set_bolt("stumble", Stumble(), parallelism=2).fields_grouping("split", "word")
    return builder.build()
