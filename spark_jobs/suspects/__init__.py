"""Which tuple kills the Python process, and which one hangs in it.

case         what is known about one bolt task whose processes died; pure
book         the contract: cases outlive processes
memory       within one process
redis_book   on the server
guard        what a task does with all that: it notes each tuple before it executes it
turns        a suspect is executed alone
watchdog     ends a process in which a bolt hangs
lookout      what it sees of a task, and does before the end
"""
