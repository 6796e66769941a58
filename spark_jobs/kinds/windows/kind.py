"""``WindowedBolt``: the kind whose tuples stay in the inbox until their last window has closed.

task.py plans its steps. A task takes what comes, up to ``max_held`` tuples, and tells the
spouts which tuples it holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from tiercel.acker.inbox.contract import Claims, OpenWindows, moment
from tiercel.spark_jobs.kinds.windows.backlog import MOST_TAKEN, roots_in
from tiercel.spark_jobs.kinds.windows.rows import FOREVER, NEVER
from tiercel.spark_jobs.kinds.windows.task import TaskWindows
from tiercel.spark_jobs.running.attempt import Attempt, copy_for
from tiercel.spark_jobs.running.kind import StepInput
from tiercel.spark_jobs.running.step import Slices
from tiercel.spark_jobs.topology.graph import upstream

log = logging.getLogger(__name__)

_SAY_FULL_S = 60.0
_SAY_STANDING_S = 30.0
_CLAIMS = Claims(1, 999)
# Open windows are counted once per second, which takes one part in ``_SHARE`` of the time at most.
_COUNT_S = 1.0
_SHARE = 100


class Windows:
    """``BoltKind`` of a windowed bolt."""

    gives_back = False
    at_work = False
    _say_full_at = float("-inf")
    # Last time at which all components could send that the windows wait for.
    _stands_since = 0.0
    _said_ancient = False
    # Time before which open windows are not counted, and the changes that the last count has seen.
    _count_at = float("-inf")
    _counted = -1
    _open = 0

    def __init__(self, attempt: Attempt, snapshot: bytes | None, order: TaskWindows) -> None:
        self._attempt = attempt
        self._order = order
        # A window may have killed the process before, and no single tuple.
        if attempt.retaken is not None:
            order.suspected = attempt.retaken.taken
            attempt.retaken = None
        order.recall = attempt.recall
        self.execution = order.execution()
        topology = attempt.around.topology
        # Each component that sends to the bolt, with all components that lead to it.
        senders = {topology.component_of(task) for task in order.watermark.highest}
        self._senders = {one: upstream(topology, one) | {one} for one in senders}
        self._stands_since = attempt.around.loop.time()
        self.copy = copy_for(attempt, snapshot)
        self.slices = Slices(attempt.around.clock, arrow=True)

    @property
    def next_at(self) -> float | None:
        return self._order.next_at

    def takes(self, wait_s: float) -> StepInput | None:
        attempt, order = self._attempt, self._order
        self._tell()
        self._count()
        found = self._step()
        if found is not None:
            return found
        moments = [] if (next_at := order.next_at) is None else [next_at]
        moments += [self._count_at] if self._counted != order.changes else []
        if moments:
            wait_s = min(wait_s, max(0.0, min(moments) - attempt.around.loop.time()))
        room = min(order.room, MOST_TAKEN)
        if room > 0:
            order.polls.poll(lambda: attempt.fetch(room, wait_s, _CLAIMS), room, wait_s)
            self._say_ancient()
            self._stand()
        else:
            order.polls.pause()
            self._say_full()
            attempt.finish()
            attempt.stop.wait(wait_s)
            order.polls.go_on()
        return self._step()

    def _count(self) -> None:
        """Note the open windows and the watermark, which the heartbeat of the process reports."""
        attempt, order = self._attempt, self._order
        now = attempt.around.loop.time()
        if now < self._count_at:
            return
        began = time.perf_counter()
        if self._counted != order.changes:
            self._counted = order.changes
            self._open = order.windows.open_windows(order.rows)
        # In processing time there is none, nor before the first tuple.
        at = order.watermark.at if order.bolt.timestamp_field else NEVER
        attempt.windows = OpenWindows(
            number=self._open,
            tuples=order.rows.count,
            watermark_us=at if at > NEVER else None,
        )
        self._count_at = now + max(_COUNT_S, _SHARE * (time.perf_counter() - began))

    def _say_full(self) -> None:
        """Log that the task takes no more tuples."""
        now = self._attempt.around.loop.time()
        if now >= self._say_full_at:
            self._say_full_at = now + _SAY_FULL_S
            log.warning(
                "%s[%d] holds %d tuples, which is max_held, and takes no more until windows close: "
                "raise max_held or the parallelism, or make the windows shorter",
                self.copy.component, self._attempt.task, self._order.rows.count,
                extra={"event": "windows_full"},
            )  # fmt: skip

    def _stand(self) -> None:
        """Do not mistake the silence of senders that cannot send for the end of their streams."""
        paused, order = self._attempt.around.paused, self._order
        stands = {one: found for one, by in self._senders.items() if (found := by & paused)}
        if stands:
            of = self._attempt.around.topology.component_of
            tasks = [task for task in order.watermark.highest if of(task) in stands]
            order.watermark.stand(tasks, order.polls.time_s)
        self._say_standing(sorted(frozenset().union(*stands.values())))

    def _say_standing(self, senders: Sequence[str]) -> None:
        """Log that windows wait for components that cannot send, if they do so for a while."""
        now = self._attempt.around.loop.time()
        if not (senders and self._order.rows.count and self._waits_for_tuples()):
            self._stands_since = now
        elif now >= max(self._say_full_at, self._stands_since + _SAY_STANDING_S):
            self._say_full_at = now + _SAY_FULL_S
            log.warning(
                "%s[%d] holds %d tuples and lets no time pass in their windows, as %s can send "
                "nothing: resume it if it is a paused bolt, and activate the topology if it is "
                "deactivated; else a spout has no worker, no connection to RabbitMQ, or all the "
                "messages that it may hold: raise its prefetch, add spout workers, or make the "
                "windows shorter",
                self.copy.component, self._attempt.task, self._order.rows.count,
                " and ".join(senders), extra={"event": "windows_stand"},
            )  # fmt: skip

    def _waits_for_tuples(self) -> bool:
        """Return False if the clock closes the windows: in processing time, except windows of a
        number of tuples.
        """
        order = self._order
        return bool(order.bolt.timestamp_field) or order.windows.next_end(order.rows) == FOREVER

    def _say_ancient(self) -> None:
        """Log once that a timestamp is probably in another unit than the bolt says."""
        bolt, ancient = self._order.bolt, self._order.timestamps.ancient
        if ancient is not None and not self._said_ancient:
            self._said_ancient = True
            log.warning(
                "%s[%d] reads a timestamp %r as %s: if its numbers are in seconds, or another unit "
                "than timestamp_unit = %r, windows are far too long: set timestamp_unit",
                self.copy.component, self._attempt.task, bolt.timestamp_field, moment(ancient),
                bolt.timestamp_unit, extra={"event": "timestamps_ancient"},
            )  # fmt: skip

    def _step(self) -> StepInput | None:
        run = self._order.next_step(must=self._attempt.backlog.must_leave)
        return None if run is None else StepInput(shares=self._order.shares(run.rows))

    def ends(self, wait_s: float) -> StepInput | None:
        self._order.polls.pause()
        self._tell()
        return self._attempt.answered(wait_s)

    def _tell(self) -> None:
        backlog = self._attempt.backlog
        self._order.telling.look(
            lambda: np.concatenate(
                [
                    np.zeros(0, np.uint64),
                    *(roots_in(one.chunk.lineage, one.rows) for one in backlog),
                ]
            )
        )

    def under_way(self) -> None:
        """Return None: no call runs between two steps."""

    def wake(self) -> None:
        """Do nothing: only the poll of the inbox blocks, and the attempt wakes it."""

    def close(self) -> None:
        self.copy.drop()
