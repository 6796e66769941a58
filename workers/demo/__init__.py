"""``tiercel demo``: real text, with faults, held against an independent count.

session   publishes, runs, kills a worker, waits for the end
text      the lines and their independent count
topology  word count with and without injected faults
measure   what it reads from the broker and from Redis
"""
