"""The price of a tuple in one process, without Spark and Redis. ``python -m bench.tuples``.

price      microseconds per tuple, by kind of bolt
hot_spots  the functions that take most of the time
bolts      sentences split and words counted, with each kind of bolt
workshop   the bolts' tasks on inboxes in memory
"""
