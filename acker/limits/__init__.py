"""Limits on how fast a bolt executes, over all its tasks: permits from buckets.

contract      taking permits and giving them back
memory        within one process; one bucket and the line before it, pure
redis_limits  in Redis, with lua/take.lua
"""
