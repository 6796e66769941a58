"""A whole topology on one machine: ``tiercel run``.

run        one process per spout task, and the driver
private    the servers: named ones, or private ones that end with the run
addresses  notes of the runs on this machine, by which commands find their servers
reload     --reload: new processes whenever the code has changed
outline    the name and files of a topology's code, found by a process of its own
"""
