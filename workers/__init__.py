"""The processes: a spout worker a task, the driver, and the command ``tiercel``.

cli, options, __main__                   the command line
queue_commands, topology_commands        its parts
local          a whole topology on one machine
spout_process  one spout task, put together            driver           the Spark query, run after run
spout_task     its loop                                processes        children that are restarted and end with us
collector      what its spout emits with               addresses        finds the private servers of tiercel run
outbox         into the ledger and the relay
outcomes       out of the feed                         registry         which queues there are
pending        what is in flight                       loading          MODULE:TOPOLOGY
admission      how much may be                         config           settings and the environment
jvm_output     Spark's stderr as log records
progress       what tiercel run says
tally          what is counted                         logs, redaction  readable lines or JSON, without passwords
demo           the demo                                errors, cli_errors  what is raised, in one line
"""
