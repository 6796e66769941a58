"""The counters: what every task of a topology did, and the last errors.

contract        what counters promise
memory          within one process
redis_counters  in Redis, with lua/count.lua, lua/report.lua and lua/trace.lua
traces          errors by kind, with the first traceback of each
windows         ten minutes, three hours, a day, all time
histogram       latencies as counters
"""
