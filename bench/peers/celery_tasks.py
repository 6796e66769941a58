"""Celery with ``acks_late`` and no results.

All other settings are Celery's defaults: one process per core, durable queues.

Celery has no trees: a sentence is acked when its words are published, even if they fail later.
"""

from __future__ import annotations

import os
import sys

from celery import Celery

from bench.peers import words

app = Celery("bench", broker=os.environ["TIERCEL_AMQP"].replace("amqp://", "pyamqp://", 1))
app.conf.update(task_acks_late=True, task_ignore_result=True)


@app.task(name="bench.split")
def split(sentence: str) -> None:
    words.note_beginning()
    for word in sentence.split():
        count.delay(word)


@app.task(name="bench.count")
def count(word: str) -> None:
    words.count_word(word)


if __name__ == "__main__":
    for line in sys.stdin:
        split.delay(line.strip())
