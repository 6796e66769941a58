"""One spout task: steps 2, 3, 7 and 8 of docs/one-message.md.

worker     takes a free task and keeps it
process    one spout task with all its parts
loop       the task's loop, in the worker and in the test kit: pace, orders, messages held
collector  gathers the spout's tuples into batches
outbox     sends a batch to the ledger and the inboxes
admission  the bound on tuples in flight
outcomes   reads outcomes from the feed for the loop
trees      the messages in flight, and how outcomes, timeouts and losses end them
spans      from delivery to settling, if traces are recorded
"""
