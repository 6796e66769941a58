"""Rows into an exchange or a queue, confirmed.

rows     from a row to a message
writers  as Spark calls them
"""
