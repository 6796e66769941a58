"""Steps 3 and 4: what every bolt task does, attempt after attempt. Plain Python, no Spark.

around           what the tasks of one process share
attempt          one attempt: take, execute, commit, again and again
kind             the contracts of what differs between bolts
arrivals         what it may take, and what it passes over
backlog          what it has taken and not committed
slices           how much one step takes
ticks            when it has a tick
copy             its copy of the bolt, and the snapshot that outlives the process
step             one step: what the bolt did, ready to leave
states           what a step does around a state
once             what it does with tuples that were applied before
emissions        what these emitted, as a few bytes
counts           what is counted of a step
commit           the order in which it leaves
suspicion        what a new attempt does where the one before it died
tracebacks       what bolts raised: the first traceback of each kind
counting         what is counted, told by the clock
"""
