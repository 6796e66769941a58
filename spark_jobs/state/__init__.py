"""The state of stateful bolts: a map per component, written once however often a step is repeated.

key_value    what a bolt uses: get, put, delete, increment, iterate
encoding     keys and values as readable bytes, and entries for people
store        the contract of the stores, and how a commit is taken back
memory       in memory
redis_store  in Redis, with its scripts in lua/
redis_shard  one task in one shard: its entries, its marks, its key names
"""
