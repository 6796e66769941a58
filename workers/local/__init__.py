"""A whole topology on one machine: ``tiercel run``.

run        one process per spout task, and the driver; --reload: new processes whenever the code has
           changed
private    the servers: named ones, or private ones that end with the run
addresses  notes of the runs on this machine, by which commands find their servers
"""
