"""Order per key: tuples of one key one after the other, over retries too (``ordered_by``).

A bolt without it never comes here.

keys             the key of a tuple, and what it is known again by
awaited          tuples that failed and come before their successors: a line per key
task_order       the order of one bolt task: what may begin, what a step did
parts            what is awaited outlives the process beside the snapshot of the bolt
gate             makes calls wait for their predecessors
ordered_backlog  what waits, of which steps take what may begin
ordered_attempt  an attempt that executes one tuple after the other, in order
ordered_calling  an attempt with calls under way, in order
"""
