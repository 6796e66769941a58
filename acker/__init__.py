"""The acker: which tuple trees are pending, and what became of them.

ids.py             the 64-bit mix, edge ids derived with it, root ids drawn
ledger.py          the contract of the ledger and its feed
memory.py            in memory
redis_ledger.py      in Redis
redis_feed.py          its outcome feed
scripts.py             its Lua scripts as typed functions
lua/                   the scripts
layout.py              its keys, and ids packed into them
redis_client.py        clients, and their errors as ours
work.py            one call's work in canonical form, its digest
outcomes.py        several reads joined
metrics.py         the contract of the counters
memory_metrics.py    in memory
redis_metrics.py     in Redis; lua/report.lua
histogram.py       latencies as counters
errors.py          what is raised
"""

from acker.errors import AckerError, LedgerRefusedError, LedgerUnavailableError, LedgerVersionError
from acker.ids import RootIds
from acker.ledger import Applied, Failure, Ids, Ledger, LedgerSpec, OutcomeFeed, Outcomes, Reply, Token, Updates
from acker.memory import MemoryLedger
from acker.memory_metrics import MemoryMetrics
from acker.metrics import ErrorReport, Metrics
from acker.redis_ledger import RedisLedger, open_ledger
from acker.redis_metrics import RedisMetrics

__all__ = [
    "AckerError",
    "Applied",
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
    "open_ledger",
]
