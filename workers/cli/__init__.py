"""The command line: it parses, loads what is named, and hands over to the modules that do the work.

app         the command ``tiercel``: which commands there are, and in which file
first_look  new, demo
run         run, spout
driver      driver, prepare
queues      publish, peek, dead-letters
topologies  depths, top, monitor, state, errors, activate, deactivate, rebalance, kill
options     options and settings that the commands share
"""
