"""Limits on how fast a bolt executes, over all its tasks: permits out of buckets.

contract      what limits promise
bucket        one bucket and the line before it: decides one call, pure
memory        within one process
redis_limits  in Redis, with lua/take.lua
"""
