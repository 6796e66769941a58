"""The fault matrix: after any fault under a steady load, every message is processed, and nothing
is left behind.

wired      a running topology, with proxies before its servers
numbered   the topology of the matrix, and effects that survive
executions each execution by its step, and the repeats
load       a steady stream of numbers
meter      effects over time: repeats and recovery
stack      numbered, wired, under load and metered
catalogue  the faults by name
report     the table printed at the end
memory     memory of the processes, for the soak
deadly     a topology for messages that kill or hang
batched    a topology that writes batches into a database
waiting    topologies of waiting work
ordered    a topology of two bolts with an order per key
booked     a topology of effects that take place once
burdens    topologies of slow work, of odd messages, and of an executor that vanishes
"""
