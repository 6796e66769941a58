"""Inboxes of the bolt tasks: the tuples that wait for each of them.

contract  appending, taking, sealing and finishing; records, ids of lines, checks of both backends
chunk     tuples as one Arrow record batch, how it is checked, and parcels of chunks
memory    within one process
redis     one stream per bolt task, in Redis
"""
