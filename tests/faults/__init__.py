"""The fault matrix: whatever fails under a steady load, every message is processed, and
nothing is left behind.

wired      a topology that runs, with proxies before its servers
numbered   the topology of the matrix, and effects that survive
executions each execution by its step, and what was repeated
load       a steady stream of numbers
meter      effects over time: repeats and recovery
stack      numbered, wired, under load and metered
catalogue  the faults by name
report     the table that is printed at the end
memory     memory of the processes, for the soak
deadly     the topology of the messages that kill or hang
batched    the topology of batches into a database
waiting    the topologies of work that waits
ordered    the topology of two bolts with an order per key
booked     the topology of effects that take place once
burdens    the topologies of slow work, of odd messages, and of an executor that vanishes
"""
