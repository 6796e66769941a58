"""A whole topology on one machine: ``tiercel run``.

run        one process per spout task, and the driver
private    the servers: named ones, or private ones that end with the run
kept       the folder of --keep
addresses  notes of the runs here, by which they are one per topology and commands find them
choosing   the run that a command means
reload     --reload: the processes anew when the code has changed
outline    the code as it is now, looked at by a process of its own
"""
