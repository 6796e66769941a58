"""Messages that leave their queue by copy: into the dead-letter queue, or into a delay queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from tiercel.queues.consuming.hand_out import Delivery
from tiercel.queues.errors import MessageTooLargeError, PublishRefusedError, QueuesError
from tiercel.queues.limits import HELD_LATER_S
from tiercel.queues.publishing.dead_letter_copy import DeadLetterWriter
from tiercel.queues.publishing.delay_copy import DelayWriter
from tiercel.queues.publishing.publication import Done

log = logging.getLogger(__name__)


class CopyFate(Enum):
    """Result of copying a message; the values are names of counters."""

    DEAD_LETTERED = "dead_lettered"
    DELAYED = "delayed"
    # The other queue did not take it.
    REFUSED = "copies_refused"
    # No delay queue can take it: its headers leave no room.
    NO_ROOM = "no_room"


class Copies:
    """Copies messages, and tells what became of each. The original is settled only then."""

    def __init__(
        self,
        dead_letter_writer: DeadLetterWriter,
        delay_writer: DelayWriter,
        told: Callable[[Delivery, CopyFate], None],
    ) -> None:
        """``told`` is called once per message, on any thread."""
        self._dead_letter_writer = dead_letter_writer
        self._delay_writer = delay_writer
        self._told = told

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Copy it to the dead-letter queue."""
        self._copy(
            delivery,
            CopyFate.DEAD_LETTERED,
            "a message stays in its queue for now",
            lambda done: self._dead_letter_writer.copy(delivery, reason, done),
        )

    def delay(self, delivery: Delivery, seconds: float, failures: int) -> None:
        """Copy it to a delay queue, with the number of its failures so far."""
        self._copy(
            delivery,
            CopyFate.DELAYED,
            f"a message wanted in {seconds:g} s is held here, for {HELD_LATER_S:.0f} s at most",
            lambda done: self._delay_writer.copy(delivery, seconds, failures, done),
        )

    def close(self, timeout_s: float) -> None:
        """Wait for what is on its way, at most so long, then end."""
        self._dead_letter_writer.close(timeout_s / 2)
        self._delay_writer.close(timeout_s / 2)

    def _copy(
        self, delivery: Delivery, fate: CopyFate, refused: str, copy: Callable[[Done], None]
    ) -> None:
        def done(error: QueuesError | None) -> None:
            if isinstance(error, MessageTooLargeError):
                self._told(delivery, CopyFate.NO_ROOM)
                return
            if error is not None:
                dead = fate is CopyFate.DEAD_LETTERED
                log.warning(
                    "%s: %s",
                    refused,
                    error,
                    extra={"event": "dead_letter_refused" if dead else "delay_refused"},
                )
            self._told(delivery, CopyFate.REFUSED if error is not None else fate)

        try:
            copy(done)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, its neighbours are not
            done(PublishRefusedError(f"it cannot be copied: {error!r}"))
