"""The acker: which tuple trees are pending, and what became of them.

effects.py         calls of several stores that leave together
ids.py             the 64-bit mix, edge ids derived with it, root ids drawn
ledger.py          the contract of the ledger and its feed
memory.py            in memory
memory_steps.py        which steps were applied
redis_ledger.py      in Redis
redis_feed.py          its outcome feed
redis_census.py        what it holds, for monitors
scripts.py             its Lua scripts as typed functions
script_sources.py      their texts, alone and joined
lua/                   the scripts
layout.py              its keys, and ids packed into them
redis_client.py        clients
redis_errors.py        their errors as ours
redis_address.py       URLs: one server, Sentinels, a cluster
redis_effects.py       servers whose calls leave together
redis_pool.py          connections, and batches of commands for their replies
redis_primary.py       connections that look for the primary
work.py            one call's work in canonical form, its digest
outcomes.py        several reads, or replies, joined
metrics.py         the contract of the counters
memory_metrics.py    in memory
redis_metrics.py     in Redis; lua/count.lua, lua/report.lua
windows.py           ten minutes, three hours, a day, all time
histogram.py       latencies as counters
errors.py          what is raised
"""

from acker.errors import AckerError, LedgerRefusedError, LedgerUnavailableError, LedgerVersionError
from acker.ids import RootIds
from acker.ledger import Applied, Census, Failure, Ids, Ledger, LedgerSpec, OutcomeFeed, Outcomes, Reply, Token, Updates
from acker.memory import MemoryLedger
from acker.memory_metrics import MemoryMetrics
from acker.metrics import ErrorReport, Metrics
from acker.outcomes import total
from acker.redis_ledger import RedisLedger, open_ledger
from acker.redis_metrics import RedisMetrics
from acker.windows import Counted, Window

__all__ = [
    "AckerError",
    "Applied",
    "Census",
    "Counted",
    "ErrorReport",
    "Failure",
    "Ids",
    "Ledger",
    "LedgerRefusedError",
    "LedgerSpec",
    "LedgerUnavailableError",
    "LedgerVersionError",
    "MemoryLedger",
    "MemoryMetrics",
    "Metrics",
    "OutcomeFeed",
    "Outcomes",
    "RedisLedger",
    "RedisMetrics",
    "Reply",
    "RootIds",
    "Token",
    "Updates",
    "Window",
    "open_ledger",
    "total",
]
