"""A model behind a queue, run on batches: ``tiercel run tiercel.examples.model:topology``.

    echo '{"text": "where is the falcon"}' | tiercel publish lines -

The result for each line goes to the queue ``languages``: ``{"text": …, "language": "English",
"probability": 0.93}``. Each process loads the file of weights once for all its tasks. This file is
small (48 KiB), and is made in the current folder at the first start.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiercel import (
    BatchBolt,
    BatchCollector,
    QueueSink,
    QueueSpout,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

log = logging.getLogger(__name__)

_SAMPLES = {
    "English": "where is the falcon and what does it see from the tower; they have seen this "
    "with their own eyes; there was nothing that the others could do about it",
    "German": "wo ist der falke und was sieht er von dem turm; sie haben das mit ihren eigenen "
    "augen gesehen; es gab nichts was die anderen dagegen tun konnten",
    "French": "où est le faucon et que voit-il depuis la tour; ils ont vu cela de leurs propres "
    "yeux; il n'y avait rien que les autres puissent faire contre cela",
}
_BUCKETS = 4096
Weights = NDArray[np.float32]


class Languages:
    """Linear model over the trigrams of a text: one row of weights per bucket of trigrams."""

    def __init__(self, names: Sequence[str], weights: Weights) -> None:
        self.names = names
        self.weights = weights

    @classmethod
    def load(cls, path: str) -> Languages:
        """Load the weights."""
        with np.load(path) as saved:
            return cls(saved["names"].tolist(), saved["weights"])

    def guess(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        """Return the likeliest language of each text with its probability, in one pass."""
        trigrams = [_trigrams(text) for text in texts]
        lengths = np.array([len(each) for each in trigrams])
        starts = np.cumsum(lengths) - lengths
        sums = np.add.reduceat(self.weights[np.concatenate(trigrams)], starts)
        scores = sums / np.sqrt(lengths)[:, None]
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        best = likely.argmax(axis=1)
        return [(self.names[at], float(row[at])) for at, row in zip(best, likely, strict=True)]


def write_weights(path: Path) -> None:
    """Count the trigrams of the samples, for a naive Bayes model."""
    counts = [np.bincount(_trigrams(text), minlength=_BUCKETS) + 0.05 for text in _SAMPLES.values()]
    logs = np.log(np.array(counts).T)
    weights = (logs - logs.mean(axis=1, keepdims=True)).astype(np.float32)
    # Write under another name first: other processes may read the file as soon as it exists.
    part = path.with_name(f"{path.stem}-{os.getpid()}.npz")
    np.savez(part, names=np.array(list(_SAMPLES)), weights=weights)
    part.replace(path)


def _trigrams(text: str) -> NDArray[np.int64]:
    """Return the bucket of each trigram of bytes."""
    letters = np.frombuffer(f"  {text.lower()} ".encode(), np.uint8).astype(np.int64)
    return (letters[:-2] * 961 + letters[1:-1] * 31 + letters[2:]) % _BUCKETS


_loaded: dict[str, Languages] = {}
_loading = threading.Lock()


def model_at(path: str) -> Languages:
    """Return the model of this process, which its tasks share as threads."""
    with _loading:
        if path not in _loaded:
            model = _loaded[path] = Languages.load(path)
            kib = model.weights.nbytes / 1024
            log.info("the model takes %.0f KiB in this process", kib)
        return _loaded[path]


class Guess(BatchBolt):
    """Runs the model on a whole batch."""

    output_fields = "text string, language string, probability double"
    # The model stays in its process, and is not pickled with the other attributes.
    transient = frozenset({"model"})
    size = 256
    wait_ms = 50

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - each task is alike
        self.model = model_at(config["weights"])

    def execute_batch(self, tuples: Sequence[Tuple], collector: BatchCollector) -> None:
        lines = []
        for tup in tuples:
            if tup["text"].strip():
                lines.append(tup)
            else:
                collector.fail(tup, "there is no text")
        if lines:
            guesses = self.model.guess([tup["text"] for tup in lines])
            for tup, (language, probability) in zip(lines, guesses, strict=True):
                collector.emit([tup["text"], language, probability], tup)


def topology() -> Topology:
    weights = Path("languages.npz").resolve()
    if not weights.exists():
        write_weights(weights)
    builder = TopologyBuilder("model")
    builder.set_spout("lines", QueueSpout("lines", fields="text string"))
    config = {"weights": str(weights)}
    builder.set_bolt("guess", Guess(), parallelism=4, config=config).shuffle_grouping("lines")
    builder.set_bolt("languages", QueueSink("languages")).shuffle_grouping("guess")
    return builder.build()
