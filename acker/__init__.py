"""The acker: pending tuple trees, and their ends. An ack-val reaches zero in lua/apply.lua.

ids           the 64-bit mix, edge ids derived with it, root ids drawn
keys          what a tuple is known by over all deliveries of its message
ledger        the contract of the ledger and its feed
work          one call's work in canonical form, its digest
memory        the ledger in memory
redis_ledger  the ledger in Redis
layout        its keys, and ids packed into them
scripts       its Lua scripts as typed functions, in lua/
redis_feed    its outcome feed
outcomes      several reads, or replies, joined
effects       calls of several stores that leave together
connection    clients of Redis, and their errors as ours
inbox         tuples that wait for each bolt task
metrics       the counters
limits        how many tuples a bolt may begin per time
errors        what is raised
"""
