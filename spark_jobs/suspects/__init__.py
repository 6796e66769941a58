"""Suspects: the tuple that kills the Python process, and the one that hangs in it.

notes       what a task does with all that: it notes each tuple before it executes it
book        the contract: cases outlive processes
case        the facts about one bolt task whose processes died; pure
memory      the book within one process
redis_book  the book on the server
turns       a suspect is executed alone
watchdog    ends a process in which a bolt hangs
lookout     its view of a task, and its actions before the end
"""
