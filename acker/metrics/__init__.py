"""The counters of every task of a topology, and the last errors.

contract        counting, errors and tracebacks
memory          within one process
redis_counters  in Redis, with lua/count.lua, lua/report.lua and lua/trace.lua
traces          errors by kind, with the first traceback of each
windows         ten minutes, three hours, a day, all time
histogram       latencies as counters
"""
