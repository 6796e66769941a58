"""One spout task: from the spout to the ledger and the inboxes, and outcomes back to the spout.

worker     takes a task that is free, and keeps it
process    one spout task, put together
task       its loop, in the worker and in the test kit
orders     whether it may emit
filling    from the spout into batches
collector  what its spout emits with
admission  how many tuples may be in flight
pace       how often it sends, how long it rests
outbox     into the ledger and the inboxes
pending    what is in flight: messages time out here
outcomes   out of the feed, to the loop
telling    how the spout is told what became of each message
trees      how outcomes, timeouts and losses end what is in flight
tally      what is counted
"""
