"""The file that a process touches while its loop turns."""

import os

from tiercel.workers.heartbeat import Heartbeat


def test_a_beat_makes_the_file_young(tmp_path):
    heartbeat = Heartbeat(tmp_path / "beat")
    heartbeat.beat()
    os.utime(tmp_path / "beat", (0, 0))
    heartbeat.beat()
    assert (tmp_path / "beat").stat().st_mtime > 0


def test_where_nobody_watches_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Heartbeat().beat()
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_said_once_and_the_work_goes_on(tmp_path, caplog):
    heartbeat = Heartbeat(tmp_path / "nowhere" / "beat")
    heartbeat.beat()
    heartbeat.beat()
    assert [record.event for record in caplog.records] == ["heartbeat_failed"]
