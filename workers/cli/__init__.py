"""The command line: parses arguments, loads the topology, and calls the module that does the work.

app         the command ``tiercel``: the list of commands and their files
first_look  new, demo
run         run, spout
driver      driver, prepare
queues      publish, peek, dead-letters
topologies  depths, top, monitor, state, errors, activate, deactivate, rebalance, kill
options     options and settings shared by the commands
"""
