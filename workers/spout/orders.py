"""A spout task's side of control: activates and deactivates its spout as people want it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tiercel.acker.errors import RedisUnavailableError
from tiercel.queues.spout import Spout
from tiercel.workers.control.contract import Control, State
from tiercel.workers.control.presence import Presence

log = logging.getLogger(__name__)


class Orders:
    """Last orders of the task.

    It holds while Redis is away, and outlives a Redis that comes back empty. One thread.
    """

    def __init__(
        self,
        control: Control,
        on_no_order: Callable[[], None] = lambda: None,
        attend: Callable[[Presence], bool] = lambda _presence: True,
    ) -> None:
        """``on_no_order`` is called when there was no order: the topology is new to Redis, or
        Redis was emptied.

        ``attend`` is called once a second: it says that the task is there, and tells whether this
        worker still has it. Both may raise RedisUnavailableError.
        """
        self._control = control
        self._on_no_order = on_no_order
        self._attend = attend
        self._dismissed = False
        self._state: State | None = None
        self._active = False
        self._over = False

    @property
    def active(self) -> bool:
        """True if the spout may emit: not before the state is known."""
        return self._active

    @property
    def dismissed(self) -> bool:
        """True if another worker has the task now."""
        return self._dismissed

    def obey(
        self, spout: Spout, pending: int, stop: Callable[[], None], oldest_s: float = 0.0
    ) -> None:
        """Report, ask, and do what is said; call it about once a second.

        Raises RedisRefusedError.
        """
        try:
            presence = Presence(
                active=self._active,
                pending=pending,
                oldest_s=oldest_s,
                in_back_off=spout.in_back_off(),
            )
            if not self._attend(presence) and not self._dismissed:
                log.warning(
                    "another worker has this task now: leaving it", extra={"event": "task_lost"}
                )
                self._dismissed = True
                stop()
            self._ask()
        except RedisUnavailableError as error:
            # No other worker can take the task now either.
            log.debug("the state stays as it is: %s", error, extra={"event": "control_away"})
        if self._over or self._state is None:
            return
        if self._state is State.KILLED:
            log.info("killed: ending", extra={"event": "killed"})
            stop()
        elif self._active != (self._state is State.ACTIVE):
            log.info("%s", self._state.value, extra={"event": f"spout_{self._state.value}"})
            self._switch(spout)

    def end(self, spout: Spout) -> None:
        """The task begins to end: deactivates the spout if it is active.

        Reports go on, orders are not obeyed any more.
        """
        self._over = True
        if self._active:
            self._switch(spout)

    def leave(self) -> None:
        """The task has ended."""
        self._control.close()

    def _ask(self) -> None:
        # An order to end is for those who hear it, not to be passed on.
        known = State.DEACTIVATED if self._state is State.DEACTIVATED else State.ACTIVE
        found = self._control.ask(known)
        self._state = found or known
        if found is None:
            self._on_no_order()

    def _switch(self, spout: Spout) -> None:
        self._active = not self._active
        if self._active:
            spout.activate()
        else:
            spout.deactivate()
