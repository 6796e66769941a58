"""A spout without a worker: the test calls it on its own thread, and is its collector.

spout_worker.py has the worker's loop.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

from tests.support.waiting import wait_until
from tiercel import SpoutContext


class Stage:
    """Opens a spout, asks it for tuples, and collects its emissions."""

    def __init__(self, amqp_url, spout, *, activated=True, held=None):
        self.spout, self.counts, self.emitted, self.errors = spout, Counter(), [], []
        self.woken = threading.Event()
        self._url = amqp_url
        self._activated = activated
        self._held = held

    def __enter__(self):
        context = SpoutContext(
            topology="t",
            component="c",
            task_id=7,
            task_index=0,
            parallelism=1,
            wake=self.woken.set,
            count=self._count,
            held=self._held,
        )
        self.spout.open({"amqp_url": self._url}, context)
        if self._activated:
            self.spout.activate()
        return self

    def __exit__(self, *_):
        self.spout.deactivate()
        self.spout.close(timedelta(seconds=10))

    def _count(self, name, count):
        self.counts[name] += count

    def emit(self, values, msg_id=None, stream="default"):
        if values == ["refuse me"]:
            raise ValueError("no such values here")
        if values == ["to Mars"]:
            raise KeyError("Mars")
        self.emitted.append((values, msg_id))
        return [1]

    def report_error(self, error):
        self.errors.append(str(error))

    def run(self, count):
        """Return the next ``count`` tuples."""

        def enough():
            self.spout.next_tuple(self)
            return len(self.emitted) >= count

        wait_until(enough)
        taken = self.emitted
        self.emitted = []
        return taken

    def poll(self, condition):
        def look():
            self.spout.next_tuple(self)
            return condition()

        wait_until(look)
