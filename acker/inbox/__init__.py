"""Inboxes of the bolt tasks: what they are sent.

contract       appending, taking, sealing and finishing
records        what travels through them
chunk          the tuples of a record, as one Arrow record batch
columns        the types of its columns
maps           maps of texts in it
rules          what both backends check alike
memory         within one process
memory_inbox   one of them, as one attempt at its task has it
memory_box     what is in it
redis_streams  one stream per bolt task, in Redis
scripts        its Lua scripts as typed functions, in lua/
covered        a seal as text
"""
