"""Uneven work in Celery: a task that sleeps as long as its message says.

With ``acks_late`` and ``worker_prefetch_multiplier=1``, so that each process holds one task at a
time; all else is default. As a program it publishes one task per line of its input, ``[seconds,
work_ms]``, at these times, and prints the time at which the first was due.
"""

from __future__ import annotations

import json
import os
import sys
import time

from celery import Celery

from bench.peers.words import client

# The hash in Redis that ``bench.topologies.slow`` names too; Celery's process has no tiercel.
DONE = "bench-done"

app = Celery("bench", broker=os.environ["TIERCEL_AMQP"].replace("amqp://", "pyamqp://", 1))
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=1)


@app.task(name="bench.work")
def work(number: int, work_ms: float) -> None:
    time.sleep(work_ms / 1000)
    client().hset(DONE, number, time.monotonic())


def publish() -> None:
    """Publish one task per line, when it is due."""
    rows = [json.loads(line) for line in sys.stdin]
    began = time.monotonic() + 0.5
    for number, (at_s, work_ms) in enumerate(rows):
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        work.delay(number, work_ms)
    print(began)


if __name__ == "__main__":
    publish()
