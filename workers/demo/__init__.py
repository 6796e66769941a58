"""``tiercel demo``: counts a real text despite faults, and compares with an independent count.

session   publishes, runs, kills a worker, waits for the end, measures and reports
topology  word count with and without injected faults
"""
