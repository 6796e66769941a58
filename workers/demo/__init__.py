"""``tiercel demo``: real text through RabbitMQ, Redis and Spark, with faults, held against an independent count.

text       the lines and their independent count
topology   word count with and without injected faults
session    publishes, runs, kills a worker, waits for the end
result     the table and the JSON line
"""
