"""Tells a spout what became of its messages, in the way that it wants to be told."""

from __future__ import annotations

from collections.abc import Sequence

from tiercel.queues.spout import MsgId, Spout, overrides_last, takes_reason


class Telling:
    """Calls ``ack``, ``fail``, ``reject``, ``retry_later`` and ``release`` of one spout.

    One thread, the spout's.
    """

    def __init__(self, spout: Spout) -> None:
        self.spout = spout
        self._acks_many = overrides_last(spout, "ack_all", "ack")
        self._gives_reason = takes_reason(spout)

    def ack(self, msg_ids: Sequence[MsgId]) -> None:
        """The trees of these messages were processed, or are not tracked."""
        if self._acks_many:
            self.spout.ack_all(msg_ids)
        else:
            for msg_id in msg_ids:
                self.spout.ack(msg_id)

    def fail(self, msg_id: MsgId, reason: str) -> None:
        """The tree of this message failed or timed out."""
        if self._gives_reason:
            self.spout.fail(msg_id, reason)
        else:
            self.spout.fail(msg_id)

    def reject(self, msg_id: MsgId, reason: str) -> None:
        """A bolt said that this message can never be processed."""
        self.spout.reject(msg_id, reason)

    def retry_later(self, msg_id: MsgId, seconds: float, reason: str, *, blame: bool) -> None:
        """A bolt wants this message again, after so long."""
        self.spout.retry_later(msg_id, seconds, reason, blame=blame)

    def release(self, msg_id: MsgId) -> None:
        """The message must be emitted again, and is not to blame."""
        self.spout.release(msg_id)
