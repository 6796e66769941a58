"""The fault matrix: whatever fails under a steady load, every message is processed, and nothing is left behind.

numbered    the topology, and effects that survive      stack    it all running, with proxies before the servers
load        a steady stream of numbers                  meter    effects over time: repeats and recovery
report      the table that is printed at the end        catalogue  the faults by name
memory      of the processes, for the soak              deadly     the topology of the messages that kill or hang
"""
