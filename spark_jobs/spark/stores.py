"""Opens the inboxes of a topology on the servers of its ledger."""

from __future__ import annotations

from tiercel.acker.connection.server import RedisServers
from tiercel.acker.inbox.contract import Inboxes
from tiercel.acker.inbox.redis_streams import RedisInboxes
from tiercel.acker.ledger import LedgerSpec


def open_inboxes(spec: LedgerSpec) -> Inboxes:
    """The inboxes, spread by task over all servers. Connects on its first call."""
    return RedisInboxes(RedisServers(spec.urls), spec.topology)
