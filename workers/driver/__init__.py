"""The driver: keeps one run of the topology going on long-lived Spark tasks.

process     the process: starts Spark, reads its stderr, takes over from the previous run
runs        begins one run after the other while the driver holds the lease
joining     extra tasks for executors that join during a run, and their end
run_watch   watches a run until it must end, and judges how it ended
"""
