"""Rows into a database, each once: SQLAlchemy is here and nowhere else.

rows    the rows to write, and the outcome of each
engine  connections, and which errors are whose
writer  the transaction of one step, and its statements in the words of each database
"""
