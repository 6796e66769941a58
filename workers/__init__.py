"""The processes: one spout worker per spout task, the driver, and the command ``tiercel``.

cli         the command line; imports the other folders, and none of them imports it
config      settings: command line, environment, files
check       checks of tiercel check: settings, servers, rights, queues, before anything starts
loading     loads the topology that MODULE:TOPOLOGY names
local       a whole topology on one machine
processes   child processes: restarted when they die, ended with their parent
spout       one spout task: emits to the inboxes, reads outcomes, times messages out
driver      the driver: runs the topology on Spark, one run after the other
control     presence of processes and orders of operators, kept in Redis
monitoring  views of running topologies: depths, top, the web page, /metrics
demo        the command tiercel demo
testing     the test kit: a whole topology in a test's thread, on simulated time
lifecycle   logging, signals, the heartbeat for health checks, retries while Redis is away
terminal    terminal output without control characters
errors      the errors that the processes raise
"""
