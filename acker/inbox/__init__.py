"""Inboxes of the bolt tasks: the tuples that wait for each of them.

contract       appending, taking, sealing and finishing
records        parcels, entries, seals and figures
chunk          tuples as one Arrow record batch, and how it is checked
rules          ids of lines, and checks of both backends
memory         within one process
redis_streams  one stream per bolt task, in Redis
"""
