"""Steps 4 to 6 of docs/one-message.md, the same for all bolts. Plain Python, no Spark.

around     what the tasks of one process share
attempt    one attempt: take, execute, commit, again and again
kind       the contracts of the objects that differ between bolts
backlog    the input that it has taken and not committed, and its ticks
copy       its copy of the bolt, and the snapshot that outlives the process
step       one step: what the bolt did, ready to leave
states     the state of a stateful bolt in a step
once       tuples that were applied before, and their emissions
commit     the order in which it leaves
suspicion  a new attempt at input that ended a process
counting   counts the steps, and sends the counters and the tracebacks, by the clock
"""
