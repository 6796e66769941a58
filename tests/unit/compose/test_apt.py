"""Services do not start while packages are installed.

Afterwards nothing of ours may keep any service from starting.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tiercel.compose.install import _INSTALL


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy-rc.d"


@contextmanager
def installing(policy: Path, script: str = "read line") -> Iterator[subprocess.Popen]:
    """Run the installing shell with an apt-get that executes ``script``; by default it waits for a
    line.
    """
    # A new file each time, because a process left by a killed shell may have the old one open.
    new = policy.parent / "new"
    new.write_text(f"#!/bin/sh\n{script}\n")
    new.chmod(0o755)
    new.rename(policy.parent / "apt-get")
    with subprocess.Popen(
        ["sh", "-c", _INSTALL, "install", str(policy), "some-server"],
        env={"PATH": f"{policy.parent}:/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        yield process
        process.communicate(b"\n")


def answer(policy: Path) -> int:
    """Return the answer that Debian gets when it asks whether a service may start."""
    return subprocess.run([str(policy), "some-server", "start"], check=False).returncode


def written(policy: Path, instead_of: str = "") -> bool:
    """Return True once the policy is complete: the shell closes it before it makes it executable.

    The text is read before the mode. In the other order the mode could be the old file's and the
    text the first line of the new one, which is not executable while the shell writes it.
    """
    try:
        return policy.read_text() != instead_of and policy.stat().st_mode & 0o111 != 0
    except FileNotFoundError:
        return False


def test_no_service_starts_while_packages_are_installed_and_all_may_afterwards(policy: Path):
    with installing(policy) as process:
        wait_until(lambda: written(policy), 10)
        assert answer(policy) == 101
        assert policy.exists()
    assert process.returncode == 0
    assert not policy.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_set_up_that_is_interrupted_leaves_no_policy(policy: Path, number: int):
    with installing(policy) as process:
        wait_until(lambda: written(policy), 10)
        process.send_signal(number)
    assert not policy.exists()


def test_a_policy_whose_set_up_was_killed_says_yes_and_takes_itself_away(policy: Path):
    with installing(policy) as process:
        wait_until(lambda: written(policy), 10)
        process.kill()
    assert policy.exists(), "nobody could take it away"
    assert answer(policy) == 0
    assert not policy.exists()


def test_the_next_set_up_writes_over_a_policy_that_was_left(policy: Path):
    with installing(policy) as process:
        wait_until(lambda: written(policy), 10)
        process.kill()
    left = policy.read_text()
    with installing(policy):
        wait_until(lambda: written(policy, instead_of=left), 10)
        assert answer(policy) == 101
    assert not policy.exists()


def test_an_administrators_policy_stays_as_it_is(policy: Path):
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o755)
    with installing(policy, "exit 0"):
        pass
    assert policy.read_text() == "#!/bin/sh\nexit 104\n"


def test_an_installation_that_fails_leaves_no_policy(policy: Path):
    with installing(policy, "exit 100") as process:
        pass
    assert process.returncode == 1
    assert not policy.exists()
