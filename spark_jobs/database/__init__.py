"""Rows into a database, each once: SQLAlchemy is here and nowhere else.

opening     where SQLAlchemy may be missing
rows        what is to be written, and what becomes of it
engine      connections, and which errors are whose
statements  how the databases that are known say things
writer      the transaction of one step
"""
