"""Suspects: tuples that kill the Python process or hang in it.

notes       notes each tuple before it is executed, and fails one that hangs
book        the case book, which outlives processes: the contract
redis_book  the case book in Redis
watchdog    ends a process in which a bolt hangs
"""
