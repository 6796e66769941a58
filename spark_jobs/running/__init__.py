"""Steps 3 and 4: bolt tasks at work, in long-lived Spark tasks. Plain Python, no Spark.

host             one Spark task: its bolt tasks in threads, heartbeat, end
interpreter      how seldom its process collects garbage, how often its threads take turns
around           what the tasks of one process share
task             one bolt task in a thread: attempt after attempt
attempt          one attempt: take, execute, commit, again and again
arrivals         what it may take, and what it passes over
backlog          what it has taken and not committed
slices           how much one step takes
spacing          how long a worker waits for company
ticks            when it has a tick
copy             its copy of the bolt, and the snapshot that outlives the process
step             one step: what the bolt did, ready to leave
execution        one bolt over the input of one step
arrow_execution  one ArrowBolt over it
states           what a step does around a state
once             what it does with tuples that were applied before
emissions        what these emitted, as a few bytes
counts           what is counted of a step
commit           the order in which it leaves
suspicion        what a new attempt does where the one before it died
counting         what is counted, told by the clock
"""
