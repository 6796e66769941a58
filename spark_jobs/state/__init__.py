"""The state of stateful bolts: one map per component, written with each step, and once however often a step is repeated.

key_value    what a bolt uses: get, put, delete, increment, iterate
encoding     keys and values as readable bytes                         undo      how a commit is taken back
store        the contract of the stores
memory         in memory
redis_store    in Redis                                                lua/      its scripts
redis_shard      one task in one shard
redis_keys       its key names
"""

from spark_jobs.state.key_value import KeyValueState
from spark_jobs.state.memory import MemoryStateStore
from spark_jobs.state.redis_store import RedisStateStore
from spark_jobs.state.store import StateStore, StateTurn, Writes

__all__ = [
    "KeyValueState",
    "MemoryStateStore",
    "RedisStateStore",
    "StateStore",
    "StateTurn",
    "Writes",
]
