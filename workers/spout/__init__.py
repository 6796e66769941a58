"""One spout task: steps 2, 3, 7 and 8 of docs/one-message.md.

worker     takes a task that is free, and keeps it
process    one spout task, put together
loop       its turns, in the worker and in the test kit: pace, orders, what the spout holds
collector  gathers what the spout emits into batches
outbox     sends a batch to the ledger and the inboxes
admission  how many tuples may be in flight
outcomes   out of the feed, to the loop
trees      the messages in flight, and how outcomes, timeouts and losses end them
tally      the counters
"""
