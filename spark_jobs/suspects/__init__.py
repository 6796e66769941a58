"""Suspects: tuples that kill the Python process or hang in it.

notes       notes each tuple before it is executed
book        suspects and cases, and their judgement
redis_book  the case book in Redis, which outlives processes
watchdog    fails a tuple that hangs, and ends its process
"""
