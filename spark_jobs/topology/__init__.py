"""Topologies: components, their subscriptions and tasks, and which of the tasks receives a tuple.

config          a topology's settings
builder         puts a topology together
checks          whether it can run
identities      whether keys reach a bolt that is to be once
graph           what it makes: components, tasks, subscriptions
grouping        which task receives a tuple: a grouping chooses here
batch_grouping  groupings without a Python loop
placement       which bolt tasks share a Spark task
shape           what the processes of a topology must agree on
"""
