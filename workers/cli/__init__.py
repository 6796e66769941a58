"""The command line: it parses, loads what is named, and hands over to the modules that do the work.

app         the command ``tiercel``: run, spout, driver, prepare, demo
options     what the commands share
queues      publish, dead-letters
publishing  the messages of files
topologies  errors, activate, deactivate, rebalance, kill
monitors    depths, top, monitor
errors      errors in one line, and exit code 2
"""
