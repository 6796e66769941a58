"""Steps 3 and 4: bolt tasks at work, in long-lived Spark tasks. Plain Python, no Spark.

host             one Spark task: its bolt tasks in threads, heartbeat, end
interpreter      how seldom its process collects garbage, how often its threads take turns
around           what the tasks of one process share
task             one bolt task in a thread: attempt after attempt
attempt          one attempt: take, execute, commit, again and again
attempts         the kind of attempt that a bolt needs
batch_attempt    one attempt that does a step per batch
calling          one attempt with calls under way, for bolts that wait
calls            those calls
hanging_call     one of them that lasts too long, for the watchdog
limited          the line before the rate limit of a bolt
renewals         timeouts of what waits for long calls
order            what is known of tuples of one key, for those in order
task_order       the order of one bolt task: what may begin, what a step did
ordered_inbox    what it keeps outlives the process
ordered_backlog  what waits, of which steps take what may begin
order_gate       makes calls wait for their predecessors
set_apart        tells the spouts of what waits for its predecessors
ordered_attempt  one attempt that executes one tuple after the other, in order
ordered_calling  one with calls under way, in order
arrivals         what it may take, and what it passes over
backlog          what it has taken and not committed
slices           how much one step takes
batch_slices     how much a step of a BatchBolt takes, and how long that waits for company
ticks            when it has a tick
copy             its copy of the bolt, and the snapshot that outlives the process
calling_copy     the copy that calls are using
step             one step: what the bolt did, ready to leave
execution        one bolt over the input of one step
arrow_execution  one ArrowBolt over it
batch_execution  one BatchBolt over it
halves           who is to blame when a call over many raises
states           what a step does around a state
once             what it does with tuples that were applied before
emissions        what these emitted, as a few bytes
counts           what is counted of a step
commit           the order in which it leaves
lost_steps       goes on where the inbox has forgotten steps
suspicion        what a new attempt does where the one before it died
tracebacks       what bolts raised: the first traceback of each kind
counting         what is counted, told by the clock
"""
