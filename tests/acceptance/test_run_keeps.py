"""``tiercel run --keep FOLDER``: the data of its private servers survive the run."""

import os
import signal
import stat

import pytest

from tests.support.runs import SHOUT, Desk
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]


def test_a_later_run_goes_on_with_what_an_earlier_one_was_given(tmp_path):
    desk = Desk(tmp_path)
    desk.write("shout.py", SHOUT)
    desk.write("three", "one\ntwo\nthree\n")
    desk.write("four", "four\n")
    options = ("shout:topology", "--keep", "data")
    with desk.run(*options) as process:
        [kept] = desk.events("data_kept")
        assert f"{tmp_path}/data" in kept["message"]
        desk.tiercel("deactivate", "shout")
        desk.tiercel("publish", "lines", "three")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert "heard " not in desk.log
    desk.assert_nothing_is_left()

    # The order to deactivate is in Redis, the messages are in RabbitMQ.
    with desk.run(*options) as process:
        desk.tiercel("publish", "lines", "four")
        assert "heard " not in desk.log
        # As in a crash: confirmed messages are on the disk.
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        wait_until(lambda: not desk.alive(), 10, "every process to be gone")

    with desk.run(*options) as process:
        desk.tiercel("activate", "shout")
        wait_until(lambda: desk.log.count("heard ") == 4, 60, "four lines to be heard")
        assert "shout has ended" in desk.tiercel("kill", "shout").stdout
        assert process.wait(60) == 0

    # A kill order ends with its run.
    with desk.run(*options) as process:
        assert process.poll() is None

    passwords = [path for path in (tmp_path / "data").rglob("password") if path.is_file()]
    assert len(passwords) == 2
    for path in passwords:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
