"""The working copy of a bolt with calls under way: what steps execute is its playback."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tiercel.acker.inbox.chunk import Lineage
from tiercel.spark_jobs.bolts.async_bolt import AsyncBolt
from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import RAISED, reason_of
from tiercel.spark_jobs.running.calls.call import Call
from tiercel.spark_jobs.running.calls.caller import Caller
from tiercel.spark_jobs.running.calls.playback import Playback
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.topology.graph import Topology

log = logging.getLogger(__name__)


def _wake_no_task() -> None:
    """Do nothing: a bolt with calls under way has no collector that threads may keep."""


class CallingCopy(WorkingCopy):
    """Lives as long as the attempt: other calls are using it when a step ends, or fails.

    So it has no snapshots, which would show calls that are not done. One thread only.
    """

    def __init__(
        self,
        topology: Topology,
        task: int,
        config: Mapping[str, Any],
        caller: Caller,
        places: int,
    ) -> None:
        super().__init__(topology, task, config, b"", None, _wake_no_task)
        self._caller = caller
        self._places = places
        self._playback: Playback | BaseException | None = None

    def begin(self) -> Playback | BaseException:
        """Make the copy if there is none; returns what steps execute, or what ``prepare`` raised
        this time.
        """
        if not isinstance(self._playback, Playback):
            try:
                self._playback = self._prepared()
            except RAISED as error:
                self._playback = error
        return self._playback

    @property
    def works(self) -> bool:
        """True if ``prepare`` did not raise when it was begun last."""
        return isinstance(self._playback, Playback)

    def ready(self) -> Playback | BaseException:
        """The same as ``begin`` returned last."""
        return self.begin() if self._playback is None else self._playback

    def load(self, calls: Sequence[Call], *, together: bool) -> None:
        """Give the next step its calls; see ``Playback.load``."""
        playback = self.begin() if self._playback is None else self._playback
        if isinstance(playback, Playback):
            playback.load(calls, together=together)

    def snapshot(self, record: Record, lineage: Lineage) -> bytes | None:  # noqa: ARG002 - as the base has it
        return None

    def drop(self) -> None:
        """Keep the copy: its attributes are not the step's alone."""

    def end(self) -> None:
        """Clean it up. No call is under way."""
        playback = self._playback
        self._playback = None
        if not isinstance(playback, Playback):
            return
        try:
            self._caller.do(playback.bolt.cleanup)
        except RAISED as error:
            log.warning(
                "%s[%d]: cleanup raised %s", self._component, self._task, reason_of(error),
                extra={"event": "bolt_cleanup_failed"},
            )  # fmt: skip

    def _prepared(self) -> Playback:
        prototype = self._topology.bolts[self._component].bolt
        bolt = cast("AsyncBolt | BasicBolt", copy.deepcopy(prototype))
        self._caller.do(bolt.prepare, self._settings(), self._topology.context_of(self._task))
        return Playback(bolt, self._caller, self._places)
