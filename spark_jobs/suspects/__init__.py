"""Which tuple kills the Python process: a task that is tried again notes each tuple before it executes it.

case         what is known about one Spark task whose processes died; pure
book         the contract: cases outlive processes
memory       within one process                        redis_book   on the server
guard        what an attempt does with all that        watchdog     ends a process that hangs
lookout      what it sees, and does before the end
"""
