"""Concurrent calls of one bolt task, on an event loop or in threads.

Bolts that execute one tuple at a time do not use this package.

call        one call with its outcome and its collector; the contract of a caller
flight      the waiting, running and ended calls of a task; the contract of a gate
coroutines  runs the calls of an AsyncBolt on the event loop of the process
threads     runs the calls of a BasicBolt in threads
"""
