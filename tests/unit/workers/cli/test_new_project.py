"""``tiercel new``: a folder whose tests pass, or one line that says why there is none."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tiercel.compose.embedded import __file__ as compose_file
from tiercel.workers.cli import first_look
from tiercel.workers.cli.app import app, one_line_errors
from tiercel.workers.cli.first_look import installed_from, write_project
from tiercel.workers.errors import UsageError
from tiercel.workers.loading import load_topology

ROOT = Path(__file__).parents[4]
FILES = {
    ".gitignore",
    "README.md",
    "tiercel.toml",
    "docker-compose.yml",
    "my_project.py",
    "orders.jsonl",
    "pyproject.toml",
    "test_my_project.py",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path / "my-project")
    return tmp_path / "my-project"


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_it_writes_a_project_and_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "my-project"])
    assert result.exit_code == 0
    assert {path.name for path in Path("my-project").iterdir()} == FILES
    for line in ("cd my-project", "pytest", "tiercel run my_project:topology"):
        assert f"    {line}\n" in result.output


def test_its_tests_pass_without_a_warning(project):
    done = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_nothing_of_a_template_is_left_in_it(project):
    for path in project.iterdir():
        assert not re.search(r"@\w+@", path.read_text()), path.name


def test_its_python_is_laid_out_and_linted_as_ours(project):
    ours = ("--isolated", "--line-length", "100")
    for words in (
        ("format", "--check", *ours),
        ("check", *ours, "--select", "ALL", "--ignore", "ANN,COM812,CPY,D,EM,INP,S101,TRY003"),
    ):
        done = python(project, "-m", "ruff", *words, ".")
        assert done.returncode == 0, done.stdout + done.stderr


def test_its_package_is_its_module_and_needs_tiercel(project):
    found = tomllib.loads((project / "pyproject.toml").read_text())
    assert found["project"]["name"] == "my-project"
    assert found["project"]["dependencies"] == [installed_from()]
    assert found["tool"]["hatch"]["build"]["targets"]["wheel"]["include"] == ["my_project.py"]


@pytest.mark.parametrize(
    ("told", "requirement"),
    [
        (None, "tiercel>=1.2.3"),
        (
            '{"url": "file:///a%20b/tiercel", "dir_info": {"editable": true}}',
            "tiercel @ file:///a%20b/tiercel",
        ),
        (
            '{"url": "file:///a/tiercel-1.whl", "archive_info": {"hash": "sha256=1"}}',
            "tiercel @ file:///a/tiercel-1.whl",
        ),
        (
            '{"url": "https://g/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "tiercel @ git+https://g/t.git@abc",
        ),
        ("{", "tiercel"),
        ("[]", "tiercel"),
        ('{"url": "https://g/t.git", "vcs_info": {}}', "tiercel @ https://g/t.git"),
        ('{"vcs_info": {"vcs": "git"}}', "tiercel"),
    ],
)
def test_the_tiercel_that_wrote_it_can_be_installed_again(monkeypatch, told, requirement):
    class Package:
        version = "1.2.3"

        def read_text(self, _name):
            return told

    monkeypatch.setattr(first_look, "distribution", lambda _name: Package())
    assert installed_from() == requirement


def test_a_tiercel_that_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(first_look, "distribution", missing)
    assert installed_from() == "tiercel"


def test_its_topology_has_its_name(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    try:
        assert load_topology("my_project:topology").name == "my-project"
    finally:
        del sys.modules["my_project"]


def test_its_stack_is_that_of_the_package_for_its_own_topology(project):
    theirs = yaml.safe_load((project / "docker-compose.yml").read_text())
    text = (Path(compose_file).parent / "docker-compose.yml").read_text()
    ours = yaml.safe_load(
        text.replace("tiercel.examples.word_count:topology", "my_project:topology")
    )
    for service in ours["services"].values():
        service.pop("build", None)
        service["volumes"] = [
            each.replace("../examples", ".") for each in service.get("volumes", [])
        ]
    for service in theirs["services"].values():
        service.setdefault("volumes", [])
    for name in ("prometheus", "grafana"):
        del ours["services"][name]
        del ours["volumes"][name]
    assert theirs["services"] == ours["services"]
    assert theirs["volumes"] == ours["volumes"]
    assert theirs["networks"] == ours["networks"]
    assert "compose/docker-compose.yml" not in (project / "docker-compose.yml").read_text()


def test_an_empty_folder_is_taken_and_a_dot_is_the_folder_around(tmp_path, monkeypatch):
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    assert write_project(Path()) == "shop"
    assert (tmp_path / "shop/shop.py").is_file()


def test_a_folder_that_is_not_empty_is_refused_in_one_line_and_left_as_it_is(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/mine").write_text("mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended, one_line_errors():
        app(["new", "shop"], standalone_mode=False)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "tiercel: shop is not empty: name a folder that is new or empty\n"
    )
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("My Project", "cannot be the name of a project"),
        ("1st", "cannot be the name of a project"),
        ("json", "there is a module 'json' already"),
        ("tiercel", "there is a module 'tiercel' already"),
        ("class", "'class' is a keyword of Python"),
        ("a-file", "is a file: name a folder that is new or empty"),
        ("a-file/shop", "cannot write"),
    ],
)
def test_what_cannot_be_a_project_is_refused(tmp_path, name, why):
    (tmp_path / "a-file").touch()
    with pytest.raises(UsageError, match=why) as refused:
        write_project(tmp_path / name)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]
