"""The driver: keeps one run of the topology going on long-lived Spark tasks.

process     the process: starts Spark, reads its stderr, takes over from the previous run
runs        begins one run after the other while the driver holds the lease
executors   looks at what waits, and reports the decision of scaling
scaling     decides how many executors the topology wants
run_watch   watches a run until it must end, and judges how it ended
"""
