"""Suspects: the tuple that kills the Python process, and the one that hangs in it.

notes       notes each tuple before it is executed, and decides about one that hangs
book        cases, which outlive processes: the contract, and a twin in memory
redis_book  the book on the server
watchdog    ends a process in which a bolt hangs
"""
