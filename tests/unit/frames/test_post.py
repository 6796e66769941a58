"""Calls reach a reader on the same host, and no process of another user."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tiercel.frames.post import Post, tell

READER = "0123456789abcdef"


@pytest.fixture
def own_folder(monkeypatch):
    """A folder with a short path, unlike ``tmp_path``: a socket's path is limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tiercel-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_folder_with_too_long_a_name_for_a_socket_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    with pytest.raises(OSError, match="too long for sockets in it: set TMPDIR"):
        Post(READER, lambda word: word)


@pytest.mark.usefixtures("own_folder")
class TestPost:
    def test_a_word_is_answered(self):
        heard = []
        post = Post(READER, lambda word: heard.append(dict(word)) or {"failed": 2})
        try:
            assert tell(READER, {"committed": 5}) == {"failed": 2}
        finally:
            post.close()
        assert heard == [{"committed": 5}]

    def test_a_reader_that_has_ended_does_not_answer(self):
        Post(READER, lambda word: word).close()
        assert tell(READER, {"committed": 5}) is None

    @pytest.mark.parametrize("reader", ["", "../../etc/passwd", "0123456789ABCDEF", "0" * 17])
    def test_what_is_no_reader_is_not_looked_for(self, reader):
        assert tell(reader, {"committed": 5}) is None

    def test_a_word_that_makes_no_sense_ends_only_itself(self):
        def on_word(word):
            if "bad" in word:
                raise KeyError("bad")
            return word

        post = Post(READER, on_word)
        try:
            assert tell(READER, {"bad": 1}) is None
            assert tell(READER, {"good": 1}) == {"good": 1}
        finally:
            post.close()

    def test_the_folder_is_this_users_alone(self, own_folder):
        Post(READER, lambda word: word).close()
        [folder] = own_folder.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.stat().st_uid == os.getuid()

    def test_sockets_of_readers_that_were_killed_are_swept(self, own_folder):
        alive = Post("a" * 16, lambda word: word)
        [folder] = own_folder.iterdir()
        for name in ("b", "c"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(folder / f"{name * 16}.sock"))
        for name in ("a", "b"):
            os.utime(folder / f"{name * 16}.sock", (1, 1))
        Post(READER, lambda word: word).close()
        assert sorted(path.name[0] for path in folder.iterdir()) == ["a", "c"]
        alive.close()

    def test_a_reader_that_looks_who_is_there_troubles_no_other(self, own_folder, caplog):
        """The other reader would log a lost call."""
        heard = []
        old = Post("a" * 16, lambda word: heard.append(word) or {})
        os.utime(own_folder / f"tiercel-readers-{os.getuid()}" / f"{'a' * 16}.sock", (1, 1))
        Post("b" * 16, lambda word: word).close()
        # The probe came first, and has its own thread.
        assert tell("a" * 16, {"committed": 1}) == {}
        wait_until(lambda: not [each for each in threading.enumerate() if "_answer" in each.name])
        old.close()
        assert heard == [{"committed": 1}]
        assert caplog.messages == []

    def test_where_its_name_is_taken_another_folder_is_used_by_readers_and_callers(
        self, own_folder
    ):
        """Another user can take the name in the shared temporary folder with a folder, link or
        file.
        """
        taken = own_folder / f"tiercel-readers-{os.getuid()}"
        taken.mkdir(mode=0o755)
        first = Post("a" * 16, lambda word: {"from": "a"})
        second = Post("b" * 16, lambda word: {"from": "b"})
        try:
            [other] = [folder for folder in own_folder.iterdir() if folder != taken]
            assert other.stat().st_mode & 0o777 == 0o700
            assert sorted(path.name[0] for path in other.iterdir()) == ["a", "b"]
            assert list(taken.iterdir()) == []
            assert tell("a" * 16, {}) == {"from": "a"}
            assert tell("b" * 16, {}) == {"from": "b"}
            assert tell("c" * 16, {}) is None
        finally:
            first.close()
            second.close()

    @pytest.mark.parametrize("squat", ["link", "file"])
    def test_a_link_or_a_file_of_its_name_is_no_folder_of_readers(self, own_folder, squat):
        taken = own_folder / f"tiercel-readers-{os.getuid()}"
        (own_folder / "elsewhere").mkdir(mode=0o700)
        if squat == "link":
            taken.symlink_to(own_folder / "elsewhere")
        else:
            taken.touch()
        post = Post(READER, lambda word: word)
        try:
            assert tell(READER, {"committed": 5}) == {"committed": 5}
        finally:
            post.close()
        assert list((own_folder / "elsewhere").iterdir()) == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
    def test_another_users_folder_is_passed_over_whatever_its_mode(self, own_folder):
        taken = own_folder / f"tiercel-readers-{os.getuid()}"
        taken.mkdir(mode=0o700)
        os.chown(taken, 65534, 65534)
        post = Post(READER, lambda word: word)
        try:
            assert tell(READER, {"committed": 5}) == {"committed": 5}
        finally:
            post.close()
        assert list(taken.iterdir()) == []
