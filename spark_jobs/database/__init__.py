"""Writes rows into a database, each exactly once. Only this folder imports SQLAlchemy.

rows    the rows to write, and the outcome of each
engine  connections, and whether an error is the database's or a row's
writer  the transaction of one step, and its statements in each SQL dialect
"""
