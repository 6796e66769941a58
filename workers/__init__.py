"""The processes: one spout worker per spout task, the driver, and the command ``tiercel``.

cli         the command line; imports the other folders, and none of them imports it
config      settings and the environment
loading     MODULE:TOPOLOGY
local       a whole topology on one machine
processes   child processes that are restarted and end with their parent
spout       one spout task: from the spout to the inboxes, and back; messages time out here
driver      the driver: run after run on Spark
control     notes between the processes of a topology in Redis, and an operator's orders
monitoring  the views of running topologies: depths, top, the page, /metrics
demo        the demo
testing     the test kit: a whole topology in a test's thread, on simulated time
lifecycle   logging, signals, the heartbeat for health checks, patience while Redis is away
terminal    the only way to write to the terminal: lines and table cells
errors      the errors that the processes raise
"""
