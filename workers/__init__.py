"""The processes: one spout worker per spout task, the driver, and the command ``tiercel``.

cli         the command line; imports the others, and none of them imports it
config      settings and the environment
loading     MODULE:TOPOLOGY
spelling    a name that was probably meant
local       a whole topology on one machine
processes   children that are restarted and end with us
spout       one spout task: from the spout to the inboxes, and back; messages time out here
driver      the driver: run after run on Spark
control     what the processes of a topology tell each other in Redis, and what an operator orders
monitoring  what people see: depths, top, the page
demo        the demo
project     the folder that ``tiercel new`` writes
testing     the test kit: a whole topology in a test's thread, on simulated time
heartbeat   for health checks
signals     SIGINT and SIGTERM
patience    while Redis is away
logs        readable lines or JSON
terminal    the way to it
cells       the cells of tables in it
errors      what is raised
"""
