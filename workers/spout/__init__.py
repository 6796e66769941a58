"""One spout task: from the spout to the ledger and the inboxes, and outcomes back to the spout.

worker            takes a task that is free, and keeps it
process           one spout task, put together
task              its loop, in the worker and in the test kit
orders            whether it may emit
filling           from the spout into batches
collector         what its spout emits with
admission         how many tuples may be in flight
admission_round   the tuples by which that is judged
admission_limits  the seconds by which they are
growth            how far that grows where trees are quick
aside             room beyond it, beside one long tuple
completions       how fast trees complete
silence           when more are tried because nothing completes
peaks             the most that was in flight lately
holding           how many messages the spout may hold
pace              how often it sends, how long it rests
bell              wakes it from its rest
arrangement       with how many tasks the driver runs each bolt
outbox            into the ledger and the inboxes
pending           what is in flight: messages time out here
outcomes          out of the feed, to the loop
telling           how the spout is told what became of each message
trees             how outcomes, timeouts and losses end what is in flight
tally             what is counted
"""
