"""The kinds of bolts: one object each, which the attempts at a bolt task are given.

choice      chooses the kind of a bolt, and begins attempts
plain       bolts that are called for each tuple, and who is to blame when a call of many raises
arrow       bolts that are given rows
batch       bolts that are given batches, which wait for company
calling     bolts with calls under way
lines       the tuples that come to calls: an open line, or one before a rate limit
calls       these calls
ordered     bolts with an order (``ordered_by``), of any of these kinds
task_order  the order of one bolt task: what may begin, what a step did, what is kept
awaited     tuples that failed and come before their successors, one per key
"""
