"""Calls under way: tuples of one task that are executed at once, on an event loop or in threads.

A bolt that executes one tuple after the other never comes here.

call        one tuple under way with its outcome and collector, and the contract of its caller
flight      which calls of a task wait, are under way, have ended; the contract of a gate
coroutines  runs an AsyncBolt's calls, on the event loop of the process
threads     runs a BasicBolt's calls, in threads
"""
