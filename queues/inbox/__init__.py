"""What bolt tasks are sent.

contract       appending, taking, sealing and finishing
memory         within one process
redis_streams  one stream per bolt task, in Redis
lua/           its scripts
"""
