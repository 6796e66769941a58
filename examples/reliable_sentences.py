"""A spout of your own that replays what failed.

``tiercel run tiercel.examples.reliable_sentences:topology``.

No queue holds these sentences, so the spout itself has to remember each sentence until it hears
its outcome. Watch the ``again`` lines: each is a sentence with a word that failed, and which
is emitted once more. Sooner or later each is ``done``.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections import deque
from collections.abc import Hashable, Mapping
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
    "no falcon loses what it carries",
    "what it drops it picks up again",
)
PAUSE_S = 0.2


class ReliableSentenceSpout(Spout):
    """Emits sentences for ever, each under an id of its own.

    Each is emitted again under the same id until it was fully processed.
    """

    output_fields = "sentence string"

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:  # noqa: ARG002 - needs no settings
        self.name = f"{context.component} {context.task_index}"
        self.sentences = itertools.cycle(SENTENCES)
        self.pending: dict[Hashable, str] = {}
        self.failed: deque[Hashable] = deque()
        self.next_at = 0.0

    def next_tuple(self, collector: SpoutCollector) -> None:
        if self.failed:
            msg_id = self.failed.popleft()
            collector.emit([self.pending[msg_id]], msg_id)
        # Look at the clock and return, rather than sleep: ack and fail are called on this thread.
        elif time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + PAUSE_S
            msg_id = uuid.uuid4()
            self.pending[msg_id] = next(self.sentences)
            # The id makes it reliable. Without one nothing is tracked, and neither ack
            # nor fail is called.
            collector.emit([self.pending[msg_id]], msg_id)

    # Both are called on the task that emitted the sentence, once for each time that it was emitted.

    def ack(self, msg_id: Hashable) -> None:
        print(f"{self.name}: done: {self.pending.pop(msg_id)}", flush=True)  # noqa: T201 - what there is to see

    def fail(self, msg_id: Hashable, reason: str = "") -> None:
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
    """Fails one word in twenty, so that there is something to see."""

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
