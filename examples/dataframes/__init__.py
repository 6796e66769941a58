"""Queues as data frames of PySpark, without a topology and without Redis.

orders  SQL over a queue, as in a notebook: sales per window, and a plot
"""
