"""The notes of private servers: found by their user's commands, and not by other users."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tiercel.workers.config import Settings
from tiercel.workers.errors import ConfigError
from tiercel.workers.local.addresses import announced, with_announced

ROOT = Path(__file__).parents[4]
GIVEN = Settings(
    amqp="amqp://u:p@127.0.0.1:1/",
    redis="redis://:p@127.0.0.1:1/0",
    management="http://u:p@127.0.0.1:2",
)
NOTHING = Settings()
OTHER = json.dumps(
    {"pid": os.getpid(), "amqp": "amqp://evil/", "redis": "redis://evil/", "management": None}
)
ANNOUNCE = f"""
from tiercel.workers.local.addresses import announced
from tiercel.workers.config import Settings
from tiercel.workers.errors import ConfigError

try:
    with announced(Settings(amqp={GIVEN.amqp!r}, redis={GIVEN.redis!r})):
        print("announced")
except ConfigError as error:
    print(error)
"""
VICTIM = 12345
STRANGER = 65534


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch) -> Path:
    """Return the place of the notes; the folder that tiercel makes in there."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"tiercel-{os.getuid()}"


def test_a_note_is_found_while_the_servers_run_and_gone_afterwards(place: Path):
    with announced(GIVEN):
        assert with_announced(NOTHING) == GIVEN
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        [note] = place.iterdir()
        assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert with_announced(NOTHING) == NOTHING
    assert list(place.iterdir()) == []


def test_addresses_that_are_given_go_before_a_note():
    other = Settings(amqp="amqp://u:p@elsewhere/")
    with announced(GIVEN):
        assert with_announced(other) is other


def test_the_latest_announcement_wins_and_its_end_leaves_no_other_one():
    later = Settings(amqp="amqp://u:p@127.0.0.1:9/", redis="redis://:p@127.0.0.1:9/0")
    with announced(GIVEN):
        with announced(later):
            assert with_announced(NOTHING) == later
        assert with_announced(NOTHING) == NOTHING


def test_a_note_of_a_process_that_is_gone_is_passed_over(place: Path):
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    place.mkdir(mode=0o700)
    note = place / "servers.json"
    note.write_text(json.dumps({**json.loads(OTHER), "pid": ended.pid}))
    note.chmod(0o600)
    assert with_announced(NOTHING) == NOTHING


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '"words"', '{"pid": "x"}', "{" * 100_000, OTHER[:-1]],
    ids=["empty", "a list", "nothing", "words", "a pid that is none", "braces", "cut off"],
)
def test_a_note_that_is_none_is_passed_over_and_written_anew(place: Path, text: str):
    place.mkdir(mode=0o700)
    note = place / "servers.json"
    note.write_text(text)
    note.chmod(0o600)
    assert with_announced(NOTHING) == NOTHING
    with announced(GIVEN):
        assert with_announced(NOTHING) == GIVEN


def test_a_link_in_place_of_the_note_is_not_followed(place: Path, tmp_path: Path):
    target = tmp_path / "download.json"
    target.write_text(OTHER)
    target.chmod(0o600)
    place.mkdir(mode=0o700)
    (place / "servers.json").symlink_to(target)
    assert with_announced(NOTHING) == NOTHING
    with announced(GIVEN):
        assert with_announced(NOTHING) == GIVEN
    assert target.read_text() == OTHER


def test_a_pipe_in_place_of_the_note_is_not_waited_for(place: Path):
    place.mkdir(mode=0o700)
    os.mkfifo(place / "servers.json", 0o600)
    assert with_announced(NOTHING) == NOTHING


def squat_with_a_link(place: Path) -> None:
    elsewhere = place.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "servers.json").write_text(OTHER)
    place.symlink_to(elsewhere)


def squat_with_a_file(place: Path) -> None:
    place.write_text(OTHER)


def squat_with_an_open_folder(place: Path) -> None:
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    (place / "servers.json").write_text(OTHER)
    (place / "servers.json").chmod(0o600)


@pytest.mark.parametrize("squat", [squat_with_a_link, squat_with_a_file, squat_with_an_open_folder])
def test_what_is_no_folder_of_the_users_alone_is_one_line_and_not_believed(place: Path, squat):
    squat(place)
    assert with_announced(NOTHING) == NOTHING
    with pytest.raises(ConfigError) as raised, announced(GIVEN):
        pass
    assert str(place) in str(raised.value)
    assert "XDG_RUNTIME_DIR" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes two other users")
@pytest.mark.parametrize("taken", ["touch {}", "mkdir {}", "mkdir -m 777 {}", "ln -s /etc {}"])
def test_another_user_who_takes_the_name_first_gets_nothing(
    tmp_path: Path, monkeypatch, taken: str
):
    """The real thing, in a folder like /tmp: a file, a folder or a link of another user's."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    shared = Path("/tmp") / f"tiercel-test-{os.getpid()}-{tmp_path.name}"
    shared.mkdir()
    try:
        shared.chmod(0o1777)
        place = shared / f"tiercel-{VICTIM}"
        as_user(STRANGER, ["sh", "-c", taken.format(place)])
        said = announce_as_victim(shared)
        assert said.startswith(f"{place} must be a folder")
        assert said.count("\n") == 1
        if place.is_dir() and not place.is_symlink():
            assert list(place.iterdir()) == []
    finally:
        subprocess.run(["rm", "-rf", str(shared)], check=True)


def as_user(user: int, command: list[str]) -> None:
    subprocess.run(command, check=True, user=user, group=user, extra_groups=[])


def announce_as_victim(temporary: Path) -> str:
    """Return what another user's announcement says.

    It has imported all that it needs while it was still this one.
    """
    become = (
        f"import os; os.setgroups([]); os.setresgid(*[{VICTIM}] * 3); os.setresuid(*[{VICTIM}] * 3)"
    )
    script = f"import tiercel.workers.local.addresses\n{become}\n{ANNOUNCE}"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
