"""The state of stateful bolts: a map per component, written once however often a step is repeated.

key_value    the interface of bolts: get, put, delete, increment, iterate
encoding     keys and values as readable bytes, and entries for display
store        the contract of the stores, and the undo records of a commit
memory       in memory
redis_store  in Redis, with its scripts in lua/
redis_shard  one task in one shard: its entries, its marks, its key names
savepoint    states as a file of JSON lines
redis_savepoint  export and import of the states in Redis
"""
