"""Order per key: what is known of tuples that must not overtake each other (``ordered_by``).

A bolt without it never comes here.

keys     the key of a tuple, and what it is known again by
awaited  tuples that failed and come before their successors: a line per key
"""
