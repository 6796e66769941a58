"""The command line: it parses, loads what is named, and hands over to the modules that do the work.

app         the command ``tiercel``: which commands there are, and in which file
new         new
run         run
spout       spout
driver      driver, prepare
demo        demo
queues      publish, dead-letters
publishing  the messages of files
topologies  errors, activate, deactivate, rebalance, kill
peek        peek
state       state
monitors    depths, top, monitor
options     what they share
"""
