"""The price of a tuple in one process, without Spark and Redis. ``python -m bench.tuples``.

price      microseconds per tuple, by kind of bolt
hot_spots  the functions that take them
bolts      sentences split and words counted, with each kind of bolt
workshop   their tasks on inboxes in memory
"""
