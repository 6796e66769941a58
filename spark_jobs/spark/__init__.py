"""Bolt tasks placed and restarted by Spark: all that knows Spark.

settings       Spark's settings, and where each applies
session        the Spark context, the versions it needs, and its file of classes
shipping       code for executors that lack it; checks that a topology can be pickled
executors      how many Spark tasks can run at once, and where Python starts
python_daemon  on each executor: imports everything, and forks the tasks' processes
job            the Spark job of one run
run            what travels to the Spark tasks, and what one of them does with it
"""
