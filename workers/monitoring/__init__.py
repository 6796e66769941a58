"""Views of running topologies, over one data layer.

watcher     reads Redis, RabbitMQ and dead letters; reports a server that is away
rows        the readings of one moment; rows of bolts, tasks, processes and once bolts
overview    everything that a view shows of a topology, computed from the readings; errors
            grouped by reason
health      a topology in one word, and its problems
sampler     reads all topologies every two seconds, and remembers their history
tables      the columns of every table, and numbers as people read them
screen      terminal output: tables, ``tiercel depths``, ``tiercel top``
page        the page of ``tiercel monitor``
exposition  ``/metrics``
"""
