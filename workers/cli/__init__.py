"""The command line: it parses, loads what is named, and hands over to the modules that do the work.

app         the command ``tiercel``: which commands there are, and in which file
new         new
run         run
spout       spout
driver      driver, prepare
demo        demo
queues      publish, peek, dead-letters
topologies  state, errors, activate, deactivate, rebalance, kill
monitors    depths, top, monitor
options     options and settings that the commands share
"""
