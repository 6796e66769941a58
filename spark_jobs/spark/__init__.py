"""Bolt tasks placed and restarted by Spark: all that knows Spark.

settings       Spark's settings, and where each applies
versions       what must be installed before it can start
archive        the file of classes that a JVM starts faster with
class_archive  making it
session        the Spark context
travel         checks that a topology can be pickled
shipping       code for executors that lack it
executors      how many Spark tasks can run at once, and where Python starts
python_daemon  on each executor: imports everything, and forks the tasks' processes
job            the Spark job of one run
run            what travels to the Spark tasks, and what one of them does with it
stores         the inboxes that it opens
"""
