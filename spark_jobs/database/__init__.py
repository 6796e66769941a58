"""Rows into a database, each once: SQLAlchemy is here and nowhere else.

rows    the rows to write, and the outcome of each row
engine  connections, and the meaning of errors
writer  the transaction of one step, in the SQL dialect of each database
"""
