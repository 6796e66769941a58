"""The command line: parses arguments, loads the topology, and calls the module that does the work.

app         the command ``tiercel``: the list of commands and their files
first_look  new, demo
run         run, spout
driver      driver, prepare
publish     publish
queues      peek, dead-letters
state       state show, state export, state import
topologies  list, depths, top, status, monitor, errors
orders      activate, deactivate, pause, resume, rebalance, kill, forget
options     options and settings shared by the commands
"""
