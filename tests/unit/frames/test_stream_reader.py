"""A reader's process shuts down cleanly, however often Spark tells it to stop."""

import signal
import subprocess
import sys
import time

PROGRAM = """
import time
from tiercel.frames import readers

readers._end_on_sigterm(lambda: print("stopped", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.001)
"""


def test_signals_that_break_into_each_other_end_it_once():
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout.readline() == "ready\n"
            until = time.monotonic() + 10
            while reader.poll() is None and time.monotonic() < until:
                reader.send_signal(signal.SIGTERM)
            reader.kill()
            assert (reader.stdout.read(), reader.wait()) == ("stopped\n", 0)
