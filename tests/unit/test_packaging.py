"""What is in the wheel, and that it works as the ``.zip`` which is shipped to executors."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("acker", "compose", "examples", "queues", "spark_jobs", "workers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("tiercel-*.whl"))


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_module_and_every_lua_script_is_in_the_wheel(contents: set[str]) -> None:
    for folder in FOLDERS:
        for pattern in ("*.py", "*.lua", "py.typed"):
            for path in (ROOT / folder).rglob(pattern):
                assert path.relative_to(ROOT).as_posix() in contents


def test_the_wheel_says_that_it_is_typed(contents: set[str]) -> None:
    assert {f"{folder}/py.typed" for folder in FOLDERS} - {"examples/py.typed"} <= contents


def test_nothing_but_the_packages_is_in_the_wheel(contents: set[str]) -> None:
    assert {name.split("/")[0] for name in contents if ".dist-info/" not in name} == set(FOLDERS)
    assert not [name for name in contents if name.endswith((".pyc", ".so"))]


def test_the_wheel_has_the_command_and_the_licence(wheel: Path, contents: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry_points = next(name for name in contents if name.endswith("entry_points.txt"))
        assert "tiercel = workers.cli:main" in archive.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in contents)


def test_the_wheel_as_a_zip_is_importable_from_elsewhere_and_finds_its_scripts(wheel: Path, tmp_path: Path) -> None:
    package = tmp_path / "tiercel.zip"
    shutil.copy(wheel, package)
    script = f"""
import sys
sys.path[:] = [{str(package)!r}] + [p for p in sys.path if p not in ("", {str(ROOT)!r})]
import importlib, pkgutil
from importlib.resources import files
found = 0
for folder in ("acker", "queues", "spark_jobs"):
    package = importlib.import_module(folder)
    assert "tiercel.zip" in package.__file__, package.__file__
    packages = [folder]
    for module in pkgutil.walk_packages(package.__path__, folder + "."):
        importlib.import_module(module.name)
        packages += [module.name] * module.ispkg
    scripts = [files(name) / "lua" for name in packages]
    found += sum(bool(p.read_text()) for lua in scripts if lua.is_dir() for p in lua.iterdir() if p.name.endswith(".lua"))
print(found)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len([path for folder in FOLDERS for path in (ROOT / folder).rglob("*.lua")])
