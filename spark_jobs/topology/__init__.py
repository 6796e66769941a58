"""Topologies: components, their subscriptions and tasks, and the groupings between them.

config         a topology's settings
builder        puts a topology together, and checks that it can run
bolt_settings  a bolt's order, limit, concurrency and batches
windowing      a windowed bolt's windows, timestamps and keys
graph          the result: components, tasks, subscriptions; placement of tasks, downstream tasks
grouping       chooses the task that receives a tuple
"""
