"""Dramatiq with its defaults.

It acks after the work, in one process per core with eight threads each, from durable queues.

Dramatiq has no trees: a sentence is acked when its words are published, even if they fail later.
"""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from bench.peers import words

dramatiq.set_broker(RabbitmqBroker(url=os.environ["TIERCEL_AMQP"]))


@dramatiq.actor
def split(sentence: str) -> None:
    words.note_beginning()
    for word in sentence.split():
        count.send(word)


@dramatiq.actor
def count(word: str) -> None:
    words.count_word(word)


if __name__ == "__main__":
    for line in sys.stdin:
        split.send(line.strip())
