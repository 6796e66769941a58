"""One spout task: steps 2, 3, 7 and 8 of docs/one-message.md.

worker     takes a task that is free, and keeps it
process    one spout task, put together
task       its loop, in the worker and in the test kit
orders     whether it may emit
filling    from the spout into batches
collector  the collector of its spout
admission  how many tuples may be in flight
pace       how often it sends, how long it rests
outbox     into the ledger and the inboxes
pending    the messages in flight, and their timeouts
outcomes   out of the feed, to the loop
telling    how the spout is told each outcome
trees      how outcomes, timeouts and losses end trees in flight
tally      the counters
"""
