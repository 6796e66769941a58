"""Topologies: components, their subscriptions and tasks, and which of the tasks receives a tuple.

config         a topology's settings
builder        puts a topology together, and checks that it can run
bolt_settings  a bolt's order, limit, concurrency and batches
graph          its result: components, tasks, subscriptions; where tasks run, what is downstream
grouping       which task receives a tuple: a grouping chooses here
"""
