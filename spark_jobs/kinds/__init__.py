"""The kinds of bolts: each attempt at a bolt task uses one ``BoltKind`` object.

choice        chooses the kind of a bolt and begins attempts
plain         bolts called once per tuple; the search for the tuple that makes a call raise
arrow         bolts that receive rows
batch         bolts that receive batches; a batch waits until it is full or its wait time is over
calling       bolts that run several calls at once
lines         the queue in front of these calls: open, or limited by a rate
calls         the calls themselves
ordered       bolts of any of these kinds with an order (``ordered_by``) or a ``Retry``
task_order    the order of one bolt task: which tuples may begin, and which have failed
awaited       failed tuples that come before their successors; the decisions of ``Retry``
windowed      windowed bolts, whose tuples stay in the inbox until their windows have closed
task_windows  plans the steps of one task of a windowed bolt, and repeats sealed ones
held_backlog  its backlog, whose entries stay in the inbox, and its reports to the spouts
window_step   one step of a windowed bolt: its record, its collector and its calls
windows       the windows of one task of a windowed bolt: which rows each has, and when it closes
held_rows     the rows that the task holds: timestamps, keys and the watermark
retries       the failed tuples of one task of a bolt with a ``Retry`` and without an order
"""
