"""Bolt tasks placed and restarted by Spark: all that knows Spark.

run         what travels to the Spark tasks, and what one of them does with it
stores      the inboxes of a topology, on the servers of its ledger
long_tasks  the Spark job of one run
"""
