"""Everything kept in Redis: tuple trees, inboxes, counters.

Step 7 of docs/one-message.md, an ack-val of 0, is in lua/apply.lua.

ids           edge ids, root ids, keys of tuples over all deliveries, hashes, inboxes, lines
ledger        contract of the ledger and its feed; the work of a call in canonical form
memory        the ledger in memory
redis_ledger  the ledger in Redis
layout        its servers and shards, and the names of its keys
redis_feed    its outcome feed
effects       calls of several stores that leave together
redis         clients of Redis, translation of their errors, scripts that leave together
inbox         tuples that wait for each bolt task
metrics       the counters
limits        rates at which bolts may begin tuples
errors        the errors that all of them raise
"""
