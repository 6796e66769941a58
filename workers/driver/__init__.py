"""The driver's part of a topology: one run after the other, on long-lived Spark tasks.

process     the process: starts Spark, reads its stderr, takes over from the run before
runs        one run after the other, while the lease is held
run_watch   watches one run until there is a reason to end it, and judges how it ended
"""
