"""Inboxes of the bolt tasks: the tuples waiting for each task.

contract  appending, taking, sealing and finishing; records and checks that both backends share
chunk     chunks: Arrow record batches of tuples; parcels of chunks
contexts  the trace contexts behind a chunk, of tuples whose trace is recorded
memory    inboxes within one process
redis     inboxes in Redis, one stream per bolt task
"""
