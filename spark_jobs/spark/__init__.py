"""Bolt tasks placed and restarted by Spark: all that knows Spark.

run         what travels to the Spark tasks, and what one of them does with it
long_tasks  the Spark job of one run
context     the Spark context, and what must hold before one can start
secrecy     the secret without which Spark's ports give nothing
"""
