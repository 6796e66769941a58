"""The driver's part of a topology: one run after the other, on long-lived Spark tasks.

lease         the contract: which driver runs a topology, and which run the spout workers send to
memory_lease  within one process
redis_lease   in Redis; lua/ has its scripts
entering      a run takes over what the one before left: inboxes, ledger, snapshots
watch         one run from its start to its end
driver        the process: Spark, and a new run whenever one ends by a fault
"""
