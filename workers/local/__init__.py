"""A whole topology on one machine: ``tiercel run``.

run        one process per spout task, and the driver; restarts them with --reload when the code
           changes
private    the servers: named ones, or private ones that end with the run
addresses  notes of the runs on this machine, from which commands learn the servers' addresses
"""
