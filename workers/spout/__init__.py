"""One spout task: steps 2, 3, 7 and 8 of docs/one-message.md.

worker     takes a free task, and keeps it
process    one spout task with all its parts
loop       its turns, in the worker and in the test kit: pace, orders, number of messages held
collector  gathers what the spout emits into batches
outbox     sends a batch to the ledger and the inboxes
admission  the bound on tuples in flight
outcomes   takes outcomes from the feed for the loop
trees      the messages in flight, and how outcomes, timeouts and losses end them
tally      counters and errors
"""
