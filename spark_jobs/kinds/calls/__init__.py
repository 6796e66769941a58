"""Calls under way: tuples of one task that are executed at once, on an event loop or in threads.

A bolt that executes one tuple after the other never comes here.

call        one tuple under way, and what came of it
recorders   the collectors of calls: what is emitted is kept until the step
returns     when tuples come again for which a line has no room
line        the tuples that come, where nothing limits them
limit_line  the tuples that wait for a permit of a rate limit
gates       the contract of what makes a tuple wait
flight      which calls of a task wait, are under way, have ended
caller      the contract of what runs them
coroutines  runs an AsyncBolt's
loop        the event loop of the process
threads     runs a BasicBolt's, in threads
"""
