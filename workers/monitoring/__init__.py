"""Views of running topologies, over one data layer.

watcher            reads Redis and RabbitMQ; reports a server that is away
rows               the readings of one moment; rows of bolts, tasks, processes and once bolts
faults             errors grouped by reason, and the traceback of each
overview           everything that a view shows of a topology, computed from the readings
health             a topology in one word, and its problems
sampler            reads all topologies every two seconds, and remembers their history
dead_letter_cache  the dead letters of each queue, read again only when their number changes
wording            numbers as people read them
tables             the columns of every table
screen             terminal output: tables, ``tiercel depths``, ``tiercel top``
page               the page of ``tiercel monitor``
exposition         ``/metrics``
"""
