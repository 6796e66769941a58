import logging
import os
import sys

from tests.support.waiting import wait_until
from tiercel.workers.driver.process import JvmLogReader, as_log_records

BROKEN_PIPE = """Traceback (most recent call last):
  File "/somewhere/pyspark/daemon.py", line 264, in manager
  File "/somewhere/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
what a bolt printed"""

OTHER = """Traceback (most recent call last):
  File "bolt.py", line 1, in execute
    boom()
ValueError: no"""


def records(text):
    log_reader = JvmLogReader()
    return [record for line in text.splitlines() if (record := log_reader.line(line)) is not None]


def test_what_a_bolt_prints_is_shown():
    assert records("hello") == [(logging.INFO, "hello")]


def test_sparks_own_lines_keep_their_level():
    assert records("08:08:56 ERROR   spark  Aborting task ") == [(logging.ERROR, "Aborting task")]


def test_java_frames_are_for_those_who_look_for_them():
    assert records("\tat org.apache.spark.Foo$.bar(Foo.scala:1)")[0][0] == logging.DEBUG


def test_a_python_worker_that_spark_ended_says_nothing():
    assert records(BROKEN_PIPE) == [(logging.INFO, "what a bolt printed")]


def test_any_other_traceback_is_one_record():
    assert records(OTHER) == [(logging.ERROR, OTHER)]


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
