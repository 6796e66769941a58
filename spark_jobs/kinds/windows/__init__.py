"""Windowed bolts, whose tuples stay in the inbox until their windows have closed.

kind       the ``BoltKind``: takes what comes, and closes windows
task       plans the steps of one task, and repeats sealed ones
step       the calls of one step, and the accumulators of windows
record     the record of one step, and the collector of a call
backlog    the backlog, whose entries stay in the inbox, and its reports to the spouts
once       each window has one result, whatever comes again
assigners  which rows each window has, and when it closes
rows       the rows that the task holds: timestamps, keys and the watermark
"""
