"""The state of stateful bolts: a map per component, written once however often a step is repeated.

key_value     what a bolt uses: get, put, delete, increment, iterate
encoding      keys and values as readable bytes
shown         which key a word means, and what an entry looks like
store         the contract of the stores
memory        in memory
redis_store   in Redis, with its scripts in lua/
redis_shard   one task in one shard
redis_marks   the marks of one task in one shard
redis_keys    its key names
undo          how a commit is taken back
"""
