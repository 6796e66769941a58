"""Slow work: bolts that wait for something else. ``python -m bench.slow``.

amount  amounts of slow work, and time limits
drain   emptying a queue of slow messages, also if some of them raise
beside  latency of fast messages while a long one is executed
curve   throughput by milliseconds per tuple and number of tasks
uneven  latency of uneven work, compared with Celery and an ideal queue; a task at half speed
"""
