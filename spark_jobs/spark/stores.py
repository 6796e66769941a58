"""Opens the inboxes of a topology on the servers of its ledger."""

from __future__ import annotations

from acker import LedgerSpec
from queues.inbox.contract import Inboxes


def open_inboxes(spec: LedgerSpec) -> Inboxes:
    """The inboxes, spread by task over all servers. Connects on its first call."""
    raise NotImplementedError
