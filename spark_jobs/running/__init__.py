"""Steps 3 and 4: bolt tasks at work, in long-lived Spark tasks. Plain Python, no Spark.

placement  which bolt tasks share a Spark task
host       one Spark task: its bolt tasks in threads, heartbeat, end
task       one bolt task in a thread: attempt after attempt
attempt    one attempt: take, execute, commit, again and again
around     what the tasks of one process share
arrivals   what it may take, and what it passes over
pending    what it has taken and not committed
slices     how much one step takes
ticks      when it has a tick
copy       its copy of the bolt, and the snapshot that outlives the process
step       one step: what the bolt did, ready to leave
commit     the order in which that leaves
suspicion  what a new attempt does where the one before it died
counting   what is counted, told by the clock
"""
