"""Bolt tasks placed and restarted by Spark: all code that depends on Spark.

settings       Spark's settings, and where each applies; what Java needs of this process
session        the Spark context, the versions it needs, and the class archive of its JVM
shipping       code for executors that lack it; checks that a topology can be pickled
executors      the free slots, and the executors on which Python starts
python_daemon  on each executor: imports everything, and forks the tasks' processes
job            the Spark job of one run
run            the object that travels to the Spark tasks and runs the bolt tasks there
"""
