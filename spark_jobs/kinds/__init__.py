"""The kinds of bolts: one object each, which the attempts at a bolt task are given.

choice   chooses the kind of a bolt, and begins attempts
plain    bolts that are called for each tuple
arrow    bolts that are given rows
batch    bolts that are given batches, which wait for company
halves   who is to blame when a call over many raises
calling  bolts with calls under way
calls    these calls
limited  the line before the rate limit of a bolt
ordered  bolts with an order, of any of these kinds but rows
order    the state of the tuples of one key
"""
