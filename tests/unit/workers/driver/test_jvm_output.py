import logging
import os
import sys

from tests.support.waiting import wait_until
from tiercel.workers.driver.jvm_output import JvmLogReader, Standstills, as_log_records

BROKEN_PIPE = """Traceback (most recent call last):
  File "/somewhere/pyspark/daemon.py", line 264, in manager
  File "/somewhere/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
what a bolt printed"""

OTHER = """Traceback (most recent call last):
  File "bolt.py", line 1, in execute
    boom()
ValueError: no"""


BLOCKED = """Timeout (0:01:00)!
Thread 0x00007f725d6d36c0 (most recent call first):
  File "/somewhere/threading.py", line 331 in wait
  File "/somewhere/watchdog.py", line 253 in _run

Thread 0x00007f726dc8cb80 (most recent call first):
  File "bolt.py", line 10 in execute

Extension modules: numpy.core._multiarray_umath (total: 1)
what a bolt printed"""


def records(text, stood_still_s=0.0):
    log_reader = JvmLogReader(lambda: stood_still_s)
    return [record for line in text.splitlines() if (record := log_reader.line(line)) is not None]


def test_what_a_bolt_prints_is_shown():
    assert records("hello") == [(logging.INFO, "hello")]


def test_sparks_own_lines_keep_their_level():
    assert records("08:08:56 ERROR   spark  Aborting task ") == [(logging.ERROR, "Aborting task")]


def test_a_python_that_does_not_start_is_told_by_the_driver_not_by_spark():
    line = (
        "08:08:56 ERROR   spark  Exception in task 0.0 in stage 1.0 (TID 3) Cannot run program "
        '"/no/python": error=2, No such file or directory'
    )
    assert records(line) == [(logging.DEBUG, line)]


def test_java_frames_are_for_those_who_look_for_them():
    assert records("\tat org.apache.spark.Foo$.bar(Foo.scala:1)")[0][0] == logging.DEBUG


def test_a_python_worker_that_spark_ended_says_nothing():
    assert records(BROKEN_PIPE) == [(logging.INFO, "what a bolt printed")]


def test_any_other_traceback_is_one_record():
    assert records(OTHER) == [(logging.ERROR, OTHER)]


def test_a_worker_that_ends_because_everything_stood_still_is_one_line():
    found = records(BLOCKED, stood_still_s=75.0)
    said = (
        "a Python worker has ended, because it could not watch its bolts for 0:01:00: everything "
        "stood still for 75 s; Spark starts another one, and its tuples are executed again"
    )
    assert found[0] == (logging.ERROR, said)
    shown = [text for level, text in found[1:] if level > logging.DEBUG]
    assert shown == ["what a bolt printed"]


def test_two_workers_that_end_at_once_are_two_lines():
    """faulthandler writes in pieces."""
    mixed = """Timeout (0:00:10)!
Thread 0x00007f725d6d36c0 (most recent call first):
  File "/somewhere/pool.py", line 248Timeout (0:00:10)!
 in _exchange_once
Thread 0x00007f726dc8cb80 (most recent call first):
  File "/somewhere/threading.py", line 331 in wait"""
    found = records(mixed, stood_still_s=18.0)
    assert [level for level, _ in found if level > logging.DEBUG] == [logging.ERROR] * 2


def test_a_worker_that_native_code_blocks_shows_its_stacks_too():
    found = records(BLOCKED)
    assert "native code of a bolt or a library holds Python's lock" in found[0][1]
    assert (logging.INFO, '  File "bolt.py", line 10 in execute') in found


def test_a_process_knows_that_it_has_just_stood_still():
    now = [100.0]
    standstills = Standstills(lambda: now[0])
    for _ in range(3):
        now[0] += 1.5
        standstills.tick()
    assert standstills.stood_still_s() == 0.0
    now[0] += 75.0
    assert standstills.stood_still_s() == 75.0, "before the next tick"
    standstills.tick()
    now[0] += 1.0
    standstills.tick()
    assert standstills.stood_still_s() == 75.0
    now[0] += 3.0
    standstills.tick()
    now[0] += 3.0
    standstills.tick()
    assert standstills.stood_still_s() == 75.0
    for _ in range(20):
        now[0] += 2.0
        standstills.tick()
    assert standstills.stood_still_s() == 0.0


def test_the_launchers_warning_and_blank_lines_are_left_out():
    assert records("WARNING: Using incubator modules: jdk.incubator.vector\n\n") == []


def test_the_memory_limits_that_a_python_worker_says_for_each_task_are_left_out():
    said = (
        "Current mem limits: -1 of max -1\n\nSetting mem limits to 3221225472 of max 3221225472\n"
    )
    assert records(said) == []


def test_descriptor_2_leads_into_the_log_and_back(caplog, capfd):
    caplog.set_level("INFO")
    with as_log_records():
        os.write(2, b"from a child\n")
        wait_until(lambda: "from a child" in caplog.messages, 5, "the line to be logged")
        print("from us", file=sys.stderr)  # noqa: T201 - what this is about
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "from us\nafterwards\n"
