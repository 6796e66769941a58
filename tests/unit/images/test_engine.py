"""Looking for a Docker engine."""

from __future__ import annotations

import gc
import grp
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from tests.images import engine as module
from tests.images.engine import _answering, private_group


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_an_engine_that_is_away_leaves_no_connection_behind(monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    assert _answering() is None
    gc.collect()


@pytest.fixture
def accounts(monkeypatch):
    """``accounts(users, groups)``: users are (name, uid, gid), and this process is the first."""

    def are(users: list[tuple[str, int, int]], groups: list[tuple[str, int, list[str]]]) -> None:
        listed = [
            pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh")) for name, uid, gid in users
        ]
        found = {gid: grp.struct_group((name, "x", gid, members)) for name, gid, members in groups}
        monkeypatch.setattr(os, "getuid", lambda: users[0][1])
        monkeypatch.setattr(
            pwd, "getpwuid", lambda uid: {each.pw_uid: each for each in listed}[uid]
        )
        monkeypatch.setattr(pwd, "getpwall", lambda: listed)
        monkeypatch.setattr(grp, "getgrgid", lambda gid: found[gid])

    return are


def test_a_group_that_is_the_users_alone_may_have_the_engine(accounts):
    accounts([("ann", 1000, 1000), ("bob", 1001, 1001)], [("ann", 1000, []), ("bob", 1001, [])])
    assert private_group() == "ann"


SHARED = {
    "the primary group of two users": (
        [("ann", 1000, 100), ("bob", 1001, 100)],
        [("users", 100, [])],
    ),
    "named like the user, with a second member": ([("ann", 1000, 1000)], [("ann", 1000, ["bob"])]),
    "named like the user, and the primary group of another": (
        [("ann", 1000, 1000), ("bob", 1, 1000)],
        [("ann", 1000, [])],
    ),
    "of a directory that lists no users": ([("ann", 1000, 100)], [("staff", 100, [])]),
    "unknown": ([("ann", 1000, 1000)], []),
}


@pytest.mark.parametrize(("users", "groups"), SHARED.values(), ids=SHARED)
def test_a_group_that_others_are_in_never_gets_the_engine(accounts, users, groups):
    accounts(users, groups)
    assert private_group() is None


@pytest.mark.parametrize(("group", "words"), [("ann", "--group ann"), ("", "")])
def test_the_engine_is_started_with_that_group_or_with_none(tmp_path: Path, group: str, words: str):
    daemon = tmp_path / "dockerd"
    daemon.write_text('#!/bin/sh\necho started "$@"\n')
    daemon.chmod(0o755)
    start = module._START.replace("/run/systemd/system", str(tmp_path / "no-systemd")).removesuffix(
        "&\n"
    )
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(
        ["/bin/sh", "-c", start, "start", group, str(tmp_path / "log")], env=environment, check=True
    )
    assert (tmp_path / "log").read_text().split() == ["started", *words.split()]
