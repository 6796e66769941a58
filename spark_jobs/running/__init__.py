"""Steps 4 to 6 of docs/one-message.md, the same for all bolts. Plain Python, no Spark.

around     shared objects of all bolt tasks in one process
attempt    one attempt: a loop that takes tuples, executes and commits them
kind       contracts of the objects that differ between bolts
backlog    tuples that are taken but not committed yet, and ticks
copy       the task's copy of the bolt, and the snapshot that outlives the process
step       one step: runs the bolt over its input, and collects the effects
states     the state of a stateful bolt during a step
once       repeats the emissions of tuples that were already applied
chain      executes emissions for the next bolts in a row within the step
commit     commits the effects of a step, in order
suspicion  careful execution of input that may have killed a process
counting   counts steps, and reports counters and tracebacks on a timer
"""
