"""Contents of the wheel, which also works as the ``.zip`` shipped to executors."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths

ROOT = Path(__file__).parents[2]
FOLDERS = ("acker", "compose", "examples", "frames", "queues", "spark_jobs", "workers")
SETTINGS = (".env", "compose/.env", "compose/.env.local")


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


def test_every_module_script_and_template_is_in_the_wheel(contents: set[str]) -> None:
    for folder in FOLDERS:
        for pattern in (
            "*.py",
            "*.lua",
            "*.js",
            "*.css",
            "*.properties",
            "templates/*.txt",
            "docker-compose.yml",
        ):
            for path in (ROOT / folder).rglob(pattern):
                assert f"tiercel/{path.relative_to(ROOT).as_posix()}" in contents


def test_the_wheel_says_that_it_is_typed(contents: set[str]) -> None:
    assert "tiercel/py.typed" in contents


def test_nothing_but_the_package_is_in_the_wheel(contents: set[str]) -> None:
    assert {name.split("/")[0] for name in contents if ".dist-info/" not in name} == {"tiercel"}
    assert {
        name.split("/")[1]
        for name in contents
        if name.startswith("tiercel/") and name.count("/") > 1
    } == set(FOLDERS)
    assert not [name for name in contents if name.endswith((".pyc", ".so"))]


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_settings_of_one_machine_are_in_no_package(tmp_path: Path, target: str) -> None:
    """The wheel is built without git and its .gitignore, as in an image."""
    checkout = tmp_path / "checkout"
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copytree(ROOT / "tiercel", checkout / "tiercel", symlinks=True)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for place in SETTINGS:
        (checkout / place).write_text("TIERCEL_TOKEN=secret\n")
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(tmp_path)]
    subprocess.run(build, cwd=checkout, capture_output=True, text=True, check=True)
    [package] = tmp_path.glob("tiercel-*.*")
    if target == "wheel":
        with zipfile.ZipFile(package) as archive:
            names = archive.namelist()
    else:
        with tarfile.open(package) as archive:
            names = archive.getnames()
    for folder in FOLDERS:
        assert any(f"tiercel/{folder}/__init__.py" in name for name in names), folder
    assert not [name for name in names if Path(name).name.startswith(".env")]


@pytest.mark.parametrize("place", SETTINGS)
def test_settings_of_one_machine_are_ignored_by_git_and_stay_out_of_an_images_build(
    tmp_path: Path, place: str
) -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    (tmp_path / "compose").mkdir()
    (tmp_path / "compose/install.py").touch()
    (tmp_path / place).touch()
    assert {"compose/install.py"} == {
        name for name in exclude_paths(str(tmp_path), patterns) if (tmp_path / name).is_file()
    }
    if (ROOT / ".git").exists():
        ignored = subprocess.run(["git", "check-ignore", "-q", place], cwd=ROOT, check=False)
        assert ignored.returncode == 0


def test_the_wheel_has_the_command_and_the_licence(wheel: Path, contents: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry_points = next(name for name in contents if name.endswith("entry_points.txt"))
        assert "tiercel = tiercel.workers.cli.app:main" in archive.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in contents)


def test_the_wheel_as_a_zip_is_importable_from_elsewhere_and_finds_its_scripts(
    wheel: Path, tmp_path: Path
) -> None:
    package = tmp_path / "tiercel.zip"
    shutil.copy(wheel, package)
    script = f"""
import sys
sys.path[:] = [{str(package)!r}] + [p for p in sys.path if p not in ("", {str(ROOT)!r})]
import importlib, pkgutil
from importlib.resources import files
from tiercel import Bolt
found = 0
for folder in ("tiercel.acker", "tiercel.queues", "tiercel.spark_jobs"):
    package = importlib.import_module(folder)
    assert "tiercel.zip" in package.__file__, package.__file__
    packages = [folder]
    for module in pkgutil.walk_packages(package.__path__, folder + "."):
        importlib.import_module(module.name)
        packages += [module.name] * module.ispkg
    scripts = [files(name) / "lua" for name in packages]
    inside = [path for lua in scripts if lua.is_dir() for path in lua.iterdir()]
    found += sum(bool(path.read_text()) for path in inside if path.name.endswith(".lua"))
print(found)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(
        [
            path
            for folder in ("acker", "queues", "spark_jobs")
            for path in (ROOT / folder).rglob("*.lua")
        ]
    )
