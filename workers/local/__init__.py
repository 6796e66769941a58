"""A whole topology on one machine: ``tiercel run``.

run        private servers, one process per spout task, and the driver
addresses  other commands find these servers
progress   what it says
"""
