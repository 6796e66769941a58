"""Rows into a database, each once: SQLAlchemy is here and nowhere else.

opening     where SQLAlchemy may be missing
rows        the rows to write, and the outcome of each
engine      connections, and which errors are whose
statements  how the databases that are known say things
writer      the transaction of one step
"""
