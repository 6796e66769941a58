"""Garbage collection, tested in a separate process because the settings cannot be undone."""

import subprocess
import sys

PROGRAM = """
import gc, os
import pyarrow
from tiercel.spark_jobs.process.interpreter import freeze_startup_objects

before = len(gc.get_objects())
freeze_startup_objects()
print(before > 10_000, len(gc.get_objects()) < 1_000, gc.get_threshold()[0])
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(0 if len(gc.get_objects()) < 1_000 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_what_is_there_is_out_of_the_collectors_sight_also_in_forked_processes():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True", "100000", "0"]


TURNS = """
import sys
from tiercel.spark_jobs.process.interpreter import take_turns_often

take_turns_often()
print(sys.getswitchinterval())
"""


def test_threads_take_turns_ten_times_as_often_as_by_default():
    done = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 0.001
