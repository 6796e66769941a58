"""The driver's part of a topology: one run after the other, on long-lived Spark tasks.

process     the process: Redis, Spark, and the runs
around      where the topology's code came from, and what watches the driver
keeper      holds the lease, and renews it
runs        one run after the other, while the lease is held
ground      servers and settings that they share
hosts       where a run has its tasks, and how much of it the run uses
starting    starts Spark, unless the driver is to end first
entering    a run takes over what the one before left: inboxes, ledger, snapshots
run_watch   looks at one run until there is a reason to end it
watch       judges one run: which task lacks a process, how it ended, when the next begins
jvm_output  Spark's stderr as log records
"""
