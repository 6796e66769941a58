"""tiercel in an environment without this checkout: from a wheel, from git and from a folder, and
the project it creates there. No index is used: the libraries are this environment's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.rest, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
# All but the environment and data; links to the folders are links in git too.
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache", "tests")


# Git uses a test's repository instead.
_URL = "https://git.invalid/tiercel"


def run(*words: object, cwd: Path, repository: Path | None = None) -> str:
    """Run a command as a user would, without this checkout's settings; return its output."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TIERCEL", "GIT_"))
    }
    environment = kept | {
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    if repository is not None:
        environment |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": _URL,
        }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the Python of an environment with the libraries, and without tiercel."""
    venv.create(tmp_path / "env", symlinks=True, with_pip=True)
    [place] = (tmp_path / "env").glob("lib/python*/site-packages")
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for found in Path(sysconfig.get_path("purelib")).iterdir():
        if not found.name.startswith(("tiercel", "_tiercel", "pip", "__editable__")):
            (libraries / found.name).symlink_to(found)
    (place / "libraries.pth").write_text(f"{libraries}\n")
    return tmp_path / "env/bin/python"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """Return a repository with one commit: this checkout."""
    folder = tmp_path_factory.mktemp("git") / "tiercel"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=_LEFT_OUT)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "all")):
        run(*git, *words, cwd=folder)
    return folder


def wheel_of(checkout: Path, folder: Path) -> Path:
    build = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ".")
    run(sys.executable, *build, cwd=checkout)
    [wheel] = folder.glob("tiercel-*.whl")
    return wheel


@pytest.mark.parametrize(
    "source", ["git", *(pytest.param(it, marks=pytest.mark.slow) for it in ("wheel", "folder"))]
)
def test_it_is_installed_into_a_project_of_its_own(
    source: str, python: Path, checkout: Path, tmp_path: Path
) -> None:
    if source == "wheel":
        wheel = wheel_of(checkout, tmp_path)
        what, named = str(wheel), wheel.as_uri()
    elif source == "git":
        commit = run("git", "rev-parse", "HEAD", cwd=checkout).strip()
        what, named = f"tiercel @ git+{_URL}", f"git+{_URL}@{commit}"
    else:
        what, named = str(checkout), checkout.as_uri()
    pip = (python, "-m", "pip", "install", "--no-build-isolation")
    run(*pip, what, cwd=tmp_path, repository=checkout)
    run(python.parent / "tiercel", "new", "my-project", cwd=tmp_path)
    project = tmp_path / "my-project"
    written = tomllib.loads((project / "pyproject.toml").read_text())
    assert written["project"]["dependencies"] == [f"tiercel @ {named}"]
    # All requirements are installed: tiercel from its source, and the libraries.
    run(*pip, "-e", ".[test]", cwd=project, repository=checkout)
    tests = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    assert "2 passed" in tests
    place = run(python, "-c", "import tiercel.queues.spout as s; print(s.__file__)", cwd=project)
    assert place.startswith(str(tmp_path / "env"))
