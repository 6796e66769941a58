"""The driver's part of a topology: one run after the other, on long-lived Spark tasks.

lease         the contract: which driver runs a topology, and which run the spout workers send to
memory_lease  within one process
redis_lease   in Redis; lua/ has its scripts
keeper        holds the lease, and renews it
entering      a run takes over what the one before left: inboxes, ledger, snapshots
watch         judges one run: who lacks a process, how it ended, when the next begins
hosts         the place where a run has its tasks, and how much of it the run uses
runs          one run after the other, while the lease is held
process       the process: Redis, Spark, and the runs
around        where the topology's code came from, and what watches the driver
"""
