"""Views of running topologies, over one data layer.

watcher     reads Redis and RabbitMQ; a server that is away is reported
raw         what was read of a topology at one moment
overview    what every view shows, worked out of the counters
bolts       the same of bolts and their tasks
once        messages that are to take effect once
faults      errors, grouped by reason
processes   what runs where, and since when
health      how it is, and where it hurts
survey      all queues: ``tiercel depths``
top         ``tiercel top``
tables      the columns of every table, once each
screen      tables as terminals show them
station     looks every two seconds, for any number of pages
history     what it remembers of depths, throughput and latencies
shelf       dead letters, as they were at the last look
page        the page of ``tiercel monitor``
exposition  ``/metrics``
tracebacks  which traceback belongs to an error
wording     numbers as people read them
"""
