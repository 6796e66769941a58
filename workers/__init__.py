"""The processes: a spout worker a task, the driver, and the command ``tiercel``.

cli, options, __main__                   the command line
queue_commands, topology_commands, monitor_commands          its parts
monitoring     what people see: depths, top, the page
local          a whole topology on one machine
spout_process  one spout task, put together            driver/          the driver: run after run on Spark
spout_task     its loop
filling        from the spout into batches             processes        children that are restarted and end with us
collector      what its spout emits with               addresses        finds the private servers of tiercel run
outbox         into the ledger and the inboxes
arrangement    with how many tasks the driver runs each bolt
trees          what is in flight, and how it settles
holding        how many messages the spout may hold
patience       while Redis is away                     pace           how often it sends, how long it rests
bell           wakes it from its rest
outcomes       out of the feed                         registry         which topologies and queues there are
pending        what is in flight                       loading          MODULE:TOPOLOGY
admission      how much may be                         config           settings and the environment
admission_limits
               the seconds by which that is judged
growth         how far it grows where trees are quick
aside          room beyond it beside one long tuple
completions    how fast trees complete
orders         whether it may emit                      heartbeat      for health checks
claims         the contract: who runs which task        spout_worker   takes a task that is free, and keeps it
redis_claims   in Redis
control        the contract: active, deactivated, killed
parallelism    numbers of tasks that an operator orders
redis_control  in Redis                                steering         what activate, deactivate, rebalance and kill do
jvm_output     Spark's stderr as log records
progress       what tiercel run says                   unreadable     things in Redis that are passed over
tally          what is counted                         logs, redaction  readable lines or JSON, without passwords
audit          what operators did                      printable, terminal  no escape sequence reaches a terminal
demo           the demo                                errors, cli_errors  what is raised, in one line
"""
