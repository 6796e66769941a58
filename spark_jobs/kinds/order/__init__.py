"""Order per key: what is known of tuples that must not overtake each other (``ordered_by``).

A bolt without it never comes here.

keys        the key of a tuple, and what it is known again by
awaited     tuples that failed and come before their successors: a line per key
task_order  the order of one bolt task: what may begin, what a step did, what is kept
gate        makes calls wait for their predecessors
"""
