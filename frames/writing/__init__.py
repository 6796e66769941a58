"""Rows into an exchange or a queue, confirmed.

rows     from a row to a message
sending  the rows of one task, and those that could not be routed
writers  as Spark calls them
"""
