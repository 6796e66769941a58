"""The counters of every task of a topology, and the last errors.

contract  counting, errors and tracebacks; windows, latencies, errors by kind; the tally of a task
memory    counters within one process
redis     counters in Redis, with lua/count.lua, lua/report.lua and lua/trace.lua
"""
