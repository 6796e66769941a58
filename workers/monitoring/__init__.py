"""Views of running topologies, over one data layer.

watcher     reads Redis, RabbitMQ and dead letters; reports servers that do not answer
rows        the readings of one moment; rows of bolts, tasks, processes and once bolts
overview    everything that views show of a topology, computed from the readings; errors
            grouped by reason
findings    the closed set of problems of a topology, each with its level
health      the grade of a topology, and its findings, from its orders and figures
sampler     reads all topologies every two seconds, and remembers their history
tables      the columns of every table; formats of numbers and times
screen      terminal output: tables, ``tiercel depths``, ``tiercel top``
page        the page of ``tiercel monitor``
exposition  ``/metrics``
"""
