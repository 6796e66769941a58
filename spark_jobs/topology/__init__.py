"""Topologies: components, their subscriptions and tasks, and which of the tasks receives a tuple.

config          a topology's settings
builder         puts a topology together
checks          whether it can run
batching        how large the batches of a BatchBolt are, and how long they wait
concurrency     how many tuples of a bolt may be under way at once
identities      whether keys reach a bolt that is to be once
graph           its result: components, tasks, subscriptions
grouping        which task receives a tuple: a grouping chooses here
batch_grouping  groupings without a Python loop
rates           rates as users write them
limits          how many tuples a bolt may begin per time
ordering        which tuples of a bolt come one after the other
common_fields   fields that a setting names, on every stream
placement       which bolt tasks share a Spark task
shape           what the processes of a topology must agree on
"""
