"""What bolt tasks are sent.

contract       appending, taking, sealing and finishing
rules          what both backends check alike
memory         within one process
redis_streams  one stream per bolt task, in Redis
lua/           its scripts
"""
