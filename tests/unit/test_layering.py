"""The direction of imports and the sizes of files, as DESIGN fixes them: read from the source, nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("acker", "compose", "examples", "queues", "spark_jobs", "workers")

# Which project folders a folder may import, beside itself.
MAY_IMPORT = {
    "acker": set(),
    "queues": set(),
    "compose": set(),
    "spark_jobs": {"acker", "queues"},
    "examples": {"queues", "spark_jobs"},
    "workers": {"acker", "compose", "examples", "queues", "spark_jobs"},
}

# The test kit lies in a folder of spark_jobs and above the rest of it: it starts a server, and nothing there knows it.
KIT = "spark_jobs/testing/"
MAY_IMPORT_IN_KIT = {"acker", "compose", "queues"}

# Which files may import a third-party library: those whose path begins with one of these.
ONLY_IN = {
    "docker": ("compose/debian.py", "compose/engine.py", "compose/images.py"),
    "pika": ("queues/",),
    "redis": (
        "acker/redis_",
        "acker/scripts.py",
        "spark_jobs/suspects/redis_book.py",
    ),
    "pyspark": ("spark_jobs/spark/", "spark_jobs/testing/spark_engine.py"),
    "pytest": ("spark_jobs/testing/plugin.py",),
    "pydantic": ("workers/config.py",),
    "pydantic_settings": ("workers/config.py",),
    "typer": (
        "workers/cli.py",
        "workers/monitor_commands.py",
        "workers/options.py",
        "workers/queue_commands.py",
        "workers/terminal.py",
        "workers/topology_commands.py",
    ),
    "nicegui": ("workers/monitoring/page",),
    "prometheus_client": ("workers/monitoring/exposition.py", "workers/monitoring/page_server.py"),
}

# Who reads the environment. Everything else gets its settings as arguments.
READS_ENVIRONMENT = {"workers/config.py"}

MODULE_LINES = 300
FUNCTION_LINES = 40
LUA_LINES = 60


def modules() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def top(module: str) -> str:
    return module.partition(".")[0]


every_module = pytest.mark.parametrize("path", modules(), ids=name_of)
every_lua_file = pytest.mark.parametrize("path", sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.lua")), ids=name_of)


@every_module
def test_a_folder_imports_only_the_folders_below_it(path: Path) -> None:
    folder = name_of(path).split("/")[0]
    foreign = {top(module) for module in imports_of(parsed(path))} & set(FOLDERS) - {folder}
    assert foreign <= (MAY_IMPORT_IN_KIT if name_of(path).startswith(KIT) else MAY_IMPORT[folder])


@every_module
def test_what_runs_topologies_does_not_know_the_test_kit(path: Path) -> None:
    if not name_of(path).startswith(KIT):
        assert not [module for module in imports_of(parsed(path)) if module.startswith("spark_jobs.testing")]


@every_module
def test_a_third_party_library_is_imported_only_where_it_belongs(path: Path) -> None:
    for module in imports_of(parsed(path)):
        places = ONLY_IN.get(top(module))
        assert places is None or name_of(path).startswith(places), f"{module} does not belong here"


@every_module
def test_errors_of_redis_are_judged_in_one_place(path: Path) -> None:
    """A second translator would disagree with the first: "retry" for one store, "refuse" for another."""
    if name_of(path).startswith("acker/redis_"):
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "redis":
            assert node.attr != "exceptions", f"line {node.lineno}"
            assert not node.attr.endswith("Error"), f"line {node.lineno}"
    assert not {module for module in imports_of(parsed(path)) if module.startswith("redis.exceptions")}


@every_module
def test_the_environment_is_read_in_one_module_only(path: Path) -> None:
    if name_of(path) in READS_ENVIRONMENT:
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            assert node.attr not in {"environ", "environb", "getenv", "putenv"}, f"line {node.lineno} reads the environment"
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            assert not {alias.name for alias in node.names} & {"environ", "environb", "getenv"}


@every_module
def test_a_module_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MODULE_LINES


@every_module
def test_a_function_is_short(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 < FUNCTION_LINES, f"{node.name} is too long"


@every_lua_file
def test_a_lua_script_is_short_and_says_its_keys_arguments_and_reply(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < LUA_LINES
    header = "\n".join(line for line in text.splitlines() if line.startswith("--"))
    for word in ("KEYS", "ARGV"):
        assert word in header, f"the header does not explain {word}"
    assert re.search(r"\brepl(y|ies)\b|\breturns?\b", header, re.IGNORECASE), "the header does not explain the reply"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_begins_with_a_map_of_itself(folder: str) -> None:
    text = (ROOT / folder / "__init__.py").read_text()
    documentation = ast.get_docstring(ast.parse(text)) or ""
    nouns = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    missing = {noun for noun in nouns if not re.search(rf"\b{noun}\b", documentation)}
    assert not missing, f"the map in {folder}/__init__.py lacks {', '.join(sorted(missing))}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_init_file_holds_its_map_and_re_exports_and_nothing_else(folder: str) -> None:
    for node in parsed(ROOT / folder / "__init__.py").body:
        is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_all = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
        assert is_doc or is_all or isinstance(node, ast.Import | ast.ImportFrom)


@every_module
def test_no_business_is_left_unfinished(path: Path) -> None:
    found = re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text())
    assert found is None, found


@pytest.mark.parametrize("lock", ["constraints.txt", "bench/constraints.txt"])
def test_nothing_in_the_lock_names_a_host_or_a_place(lock: str) -> None:
    for line in (ROOT / lock).read_text().splitlines():
        assert line.startswith("# ") or re.fullmatch(r"[a-z0-9.-]+==\S+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
