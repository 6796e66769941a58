"""Slow work: bolts that wait for something else. ``python -m bench.slow``.

amount  how much of it
drain   a queue of it, emptied; with messages that raise, too
beside  what fast messages wait beside a long one
curve   by milliseconds per tuple and by tasks
uneven  latency of uneven work, beside Celery and an ideal queue; a task at half speed
"""
