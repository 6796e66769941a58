"""What Spark's worker walks through after every task, in a process of its own: a process cannot undo what is tried here."""

import subprocess
import sys

PROGRAM = """
import gc
from spark_jobs.garbage import spare_the_collector, task_ended

spare_the_collector()
seen = []
for number in range(1, 9):
    if number == 1:
        loaded = [[index] for index in range(50_000)]  # as a bolt does that loads a model
    if number == 5:
        grown = [[index] for index in range(50_000)]  # as a bolt does that remembers what it saw
    task_ended()
    seen.append(len(gc.get_objects()) < 1_000)
print(*seen)
"""


def test_what_tasks_bring_and_keep_is_out_of_the_collectors_sight_soon():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 4 + ["False"] * 3 + ["True"]
