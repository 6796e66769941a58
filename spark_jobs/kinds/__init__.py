"""The kinds of bolts: each attempt at a bolt task uses one ``BoltKind`` object.

choice      chooses the kind of a bolt and begins attempts
plain       bolts called once per tuple; the search for the tuple that makes a call raise
arrow       bolts that receive rows
batch       bolts that receive batches; a batch waits until it is full or its wait time is over
calling     bolts that run several calls at once
lines       the queue in front of these calls: open, or limited by a rate
calls       the calls themselves
ordered     bolts of any of these kinds with an order (``ordered_by``) or a ``Retry``
task_order  the order of one bolt task: which tuples may begin, and which have failed
awaited     failed tuples that come before their successors; the decisions of ``Retry``
windows     windowed bolts, whose tuples stay in the inbox until their windows have closed
retries     the failed tuples of one task of a bolt with a ``Retry`` and without an order
"""
