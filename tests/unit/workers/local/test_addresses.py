"""Notes of runs: one run per topology, found by its user's commands, and not by other users'."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tiercel.workers.config import Settings
from tiercel.workers.errors import ConfigError, UsageError
from tiercel.workers.local.addresses import RunNote, claimed, runs_here

ROOT = Path(__file__).parents[4]
GIVEN = Settings(
    amqp="amqp://u:p@127.0.0.1:1/",
    redis="redis://:p@127.0.0.1:1/0",
    management="http://u:p@127.0.0.1:2",
)
CLAIM = """
import sys
from tiercel.workers.errors import WorkersError
from tiercel.workers.local.addresses import claimed

try:
    with claimed("orders"):
        print("claimed", flush=True)
        sys.stdin.read()
except WorkersError as error:
    print(error)
"""
VICTIM = 12345
STRANGER = 65534


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch) -> Path:
    """Return the place of the notes: the folder that tiercel makes in this one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"tiercel-{os.getuid()}"


def this_process(topology: str = "orders") -> RunNote:
    """Return a note as this process would write it."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return RunNote(
        topology=topology,
        pid=os.getpid(),
        started=int(ticks),
        amqp="amqp://evil/",
        redis="redis://evil/",
    )


def lay(place: Path, text: str, name: str = "run-orders-0.json") -> Path:
    """Put a note into the place."""
    place.mkdir(mode=0o700, exist_ok=True)
    note = place / name
    note.write_text(text)
    note.chmod(0o600)
    return note


def laid(note: RunNote) -> str:
    return json.dumps(asdict(note))


def test_a_note_is_found_while_the_servers_run_and_gone_afterwards(place: Path):
    with claimed("orders", ("new", "done")) as claim:
        [note] = runs_here()
        assert (note.topology, note.queues, note.pid) == ("orders", ("new", "done"), os.getpid())
        assert (note.amqp, note.redis, note.management) == (None, None, None)
        with claim.announced(GIVEN):
            [note] = runs_here()
            assert (note.amqp, note.redis) == (GIVEN.amqp, GIVEN.redis)
            assert note.management == GIVEN.management
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
            assert list(place.iterdir()) == [claim.path]
            assert stat.S_IMODE(claim.path.stat().st_mode) == 0o600
        [note] = runs_here()
        assert note.amqp is None
    assert runs_here() == []
    assert list(place.iterdir()) == []


def test_no_password_of_a_note_is_shown(place: Path):
    with claimed("orders") as claim, claim.announced(GIVEN):
        assert ":p@" not in repr(runs_here()) + str(runs_here()[0])


def test_runs_of_several_topologies_live_side_by_side():
    with claimed("orders"), claimed("Füße / ../x"), claimed("Füße / ../y"):
        assert [note.topology for note in runs_here()] == ["Füße / ../x", "Füße / ../y", "orders"]
    assert runs_here() == []


def another_run() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CLAIM],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_second_run_of_a_topology_is_refused_with_the_first_ones_pid():
    with another_run() as first:
        assert first.stdout.readline() == "claimed\n"
        with pytest.raises(UsageError) as raised, claimed("orders"):
            pass
        assert f"orders is already running here (process {first.pid});" in str(raised.value)
        with claimed("orders", at="redis://elsewhere/0"):
            pass
        first.kill()
        first.wait()
        # The note of the ended run is still there, but has no meaning.
        with claimed("orders"):
            assert [note.pid for note in runs_here()] == [os.getpid()]


def test_a_run_waits_for_another_that_is_ending(caplog):
    caplog.set_level("INFO")
    with another_run() as first:
        assert first.stdout.readline() == "claimed\n"
        looks = []

        def is_ending(note: RunNote) -> bool:
            looks.append(note.pid)
            if len(looks) == 3:
                first.kill()
                first.wait()
            return True

        with claimed("orders", is_ending=is_ending):
            assert [note.pid for note in runs_here()] == [os.getpid()]
        assert set(looks) == {first.pid}
    assert [record.event for record in caplog.records] == ["run_waits"]


def test_of_many_that_begin_at_once_one_runs():
    runs = [another_run() for _ in range(4)]
    said = [run.stdout.readline() for run in runs]
    for run in runs:
        run.kill()
        run.communicate()
    assert said.count("claimed\n") == 1
    assert sum("is already running here" in line for line in said) == 3


@pytest.mark.parametrize("change", [{"pid": 1}, {"started": 1}], ids=["another", "an older"])
def test_a_note_of_a_process_that_is_gone_is_passed_over(place: Path, change: dict[str, int]):
    lay(place, laid(replace(this_process(), **change)))
    assert runs_here() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '"words"',
        '{"pid": "x"}',
        "{" * 100_000,
        laid(this_process())[:-1],
        laid(replace(this_process(), topology=5)),
        laid(replace(this_process(), queues=(5,))),
        laid(replace(this_process(), amqp=5)),
        laid(this_process())[:-1] + ', "more": 1}',
    ],
    ids=[
        "empty", "a list", "nothing", "words", "a pid that is none", "braces", "cut off",
        "a number for a name", "a number for a queue", "a number for an address", "more",
    ],
)  # fmt: skip
def test_a_note_that_is_none_is_passed_over_and_written_anew(place: Path, text: str):
    with claimed("orders") as claim:
        file = claim.path.name
    lay(place, text, file)
    assert runs_here() == []
    with claimed("orders"):
        assert [note.topology for note in runs_here()] == ["orders"]


def test_a_link_in_place_of_the_note_is_not_followed(place: Path, tmp_path: Path):
    with claimed("orders") as claim:
        file = claim.path
    target = lay(tmp_path, laid(this_process()), "download.json")
    file.symlink_to(target)
    assert runs_here() == []
    with claimed("orders"):
        assert [note.redis for note in runs_here()] == [None]
    assert target.read_text() == laid(this_process())


def test_a_pipe_in_place_of_the_note_is_not_waited_for(place: Path):
    place.mkdir(mode=0o700)
    os.mkfifo(place / "run-orders-0.json", 0o600)
    assert runs_here() == []


def squat_with_a_link(place: Path) -> None:
    elsewhere = place.with_name("elsewhere")
    lay(elsewhere, laid(this_process()))
    place.symlink_to(elsewhere)


def squat_with_a_file(place: Path) -> None:
    place.write_text(laid(this_process()))


def squat_with_an_open_folder(place: Path) -> None:
    lay(place, laid(this_process()))
    place.chmod(0o777)


@pytest.mark.parametrize("squat", [squat_with_a_link, squat_with_a_file, squat_with_an_open_folder])
def test_what_is_no_folder_of_the_users_alone_is_one_line_and_not_believed(place: Path, squat):
    squat(place)
    assert runs_here() == []
    with pytest.raises(ConfigError) as raised, claimed("orders"):
        pass
    assert str(place) in str(raised.value)
    assert "XDG_RUNTIME_DIR" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes two other users")
@pytest.mark.parametrize("taken", ["touch {}", "mkdir {}", "mkdir -m 777 {}", "ln -s /etc {}"])
def test_another_user_who_takes_the_name_first_gets_nothing(
    tmp_path: Path, monkeypatch, taken: str
):
    """Done for real, in a folder like /tmp, with a file, a folder or a link of another user."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    shared = Path("/tmp") / f"tiercel-test-{os.getpid()}-{tmp_path.name}"
    shared.mkdir()
    try:
        shared.chmod(0o1777)
        place = shared / f"tiercel-{VICTIM}"
        as_user(STRANGER, ["sh", "-c", taken.format(place)])
        said = claim_as_victim(shared)
        assert said.startswith(f"{place} must be a folder")
        assert said.count("\n") == 1
        if place.is_dir() and not place.is_symlink():
            assert list(place.iterdir()) == []
    finally:
        subprocess.run(["rm", "-rf", str(shared)], check=True)


def as_user(user: int, command: list[str]) -> None:
    subprocess.run(command, check=True, user=user, group=user, extra_groups=[])


def claim_as_victim(temporary: Path) -> str:
    """Return the result of another user's claim.

    The process has imported everything before it changes its user.
    """
    become = (
        f"import os; os.setgroups([]); os.setresgid(*[{VICTIM}] * 3); os.setresuid(*[{VICTIM}] * 3)"
    )
    script = f"import tiercel.workers.local.addresses\n{become}\n{CLAIM}"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
