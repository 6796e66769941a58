"""The direction of imports and the sizes of files, as DESIGN sets them, read from the source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("acker", "compose", "examples", "frames", "queues", "spark_jobs", "workers")

# Project folders that a folder may import besides itself.
MAY_IMPORT = {
    "acker": set(),
    "queues": set(),
    "compose": set(),
    # Data frames need neither topologies nor Redis.
    "frames": {"queues"},
    "spark_jobs": {"acker", "queues"},
    "examples": {"queues", "spark_jobs"},
    "workers": {"acker", "compose", "examples", "queues", "spark_jobs"},
}

# The test kit runs topologies as the processes do; the processes do not import it.
KIT = "workers/testing/"

# Files that may import a third-party library: their paths begin with one of these.
ONLY_IN = {
    "docker": (),
    "pika": ("queues/",),
    "redis": (
        "acker/redis/",
        "acker/redis_",
        "spark_jobs/suspects/redis_book.py",
    ),
    "pyspark": (
        "examples/dataframes/",
        "frames/",
        "spark_jobs/spark/",
        "workers/testing/spark_engine.py",
    ),
    "pytest": ("workers/testing/plugin.py",),
    "pydantic": (
        "spark_jobs/state/savepoint.py",
        "workers/config.py",
        "workers/control/registry.py",
        "workers/local/addresses.py",
    ),
    "pydantic_settings": ("workers/config.py",),
    "typer": ("workers/cli/", "workers/terminal.py"),
    "nicegui": ("workers/monitoring/page/",),
    "opentelemetry": ("spark_jobs/tracing/", "workers/spout/spans.py"),
    "prometheus_client": ("workers/monitoring/exposition.py", "workers/monitoring/page/server.py"),
}

# Files that read the environment; all others get their settings as arguments. Spark and pyspark set
# the socket's path there for the process that forks workers. OpenTelemetry's SDK reads its settings
# there, so executors get the driver's settings there. Spark takes Java from a variable.
READS_ENVIRONMENT = {
    "workers/config.py",
    "spark_jobs/spark/python_daemon.py",
    "spark_jobs/spark/session.py",
    "spark_jobs/tracing/process.py",
}

MODULE_LINES = 600
FUNCTION_LINES = 40
LUA_LINES = 60


def modules() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def modules_of_the_benchmark() -> list[Path]:
    return sorted((ROOT / "bench").rglob("*.py"))


def everything() -> list[Path]:
    return sorted(
        path
        for folder in (*FOLDERS, "bench", "tests", "tiercel")
        for path in (ROOT / folder).rglob("*.py")
    )


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Return the modules that a file imports; cached, since most rules need them and trees are
    large.
    """
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.append(node.module or "")
    return tuple(found)


def top(module: str) -> str:
    return module.partition(".")[0]


def folder_of(module: str) -> str:
    """Return the folder of one of our modules: ``queues`` of ``tiercel.queues.spout``."""
    return module.split(".")[1] if module.startswith("tiercel.") else ""


def every(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make one test of a rule for these files, which names every file that breaks it.

    One test per file and rule would be five thousand, a third of all tests.
    """

    def of(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    broken.append(f"{name_of(path)}: {error}")
            assert not broken, "\n".join(broken)

        test.__name__ = rule.__name__
        test.__doc__ = rule.__doc__
        return test

    return of


every_module = every(modules())
every_map = every(
    sorted(
        {
            path.parent / "__init__.py"
            for path in (
                *modules(),
                *modules_of_the_benchmark(),
                ROOT / "tests/support/x",
                ROOT / "tests/images/x",
            )
        }
    )
)
every_lua_file = every(sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.lua")))


@every_module
def test_a_folder_imports_only_the_folders_below_it(path: Path) -> None:
    folder = name_of(path).split("/")[0]
    foreign = {folder_of(module) for module in imports_of(path)} & set(FOLDERS) - {folder}
    assert foreign <= MAY_IMPORT[folder]


def modules_by_name() -> dict[str, Path]:
    """Return every module by its name in ``tiercel``: ``queues.broker.depths``."""
    return {name_of(path).removesuffix(".py").replace("/", "."): path for path in modules()}


def imports_between_modules() -> dict[str, set[str]]:
    """Return the imports of each module, including imports for types alone and in functions."""
    known = modules_by_name()
    found = {}
    for name, path in known.items():
        tree = parsed(path)
        named = set(imports_of(path))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                named |= {f"{node.module}.{alias.name}" for alias in node.names}
        found[name] = {each.removeprefix("tiercel.") for each in named} & known.keys() - {name}
    return found


def circle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the nodes of one circle in order, with the first again at the end; empty if none."""
    done: set[str] = set()

    def search(node: str, way: Sequence[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        for other in sorted(graph.get(node, ())):
            if circle := search(other, [*way, node]):
                return circle
        done.add(node)
        return []

    return next(filter(None, (search(node, []) for node in sorted(graph))), [])


def test_no_circle_of_imports_between_files() -> None:
    circle = circle_in(imports_between_modules())
    assert not circle, "a circle of imports: " + " -> ".join(circle)


def test_no_circle_of_imports_between_folders() -> None:
    """A file directly in a top folder is a node of its own, and so is a sub-folder."""

    def node_of(module: str) -> str:
        folder, _, _ = module.rpartition(".")
        return folder if "." in folder else module

    graph: dict[str, set[str]] = defaultdict(set)
    why: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module, others in imports_between_modules().items():
        for other in others:
            if node_of(module) != node_of(other):
                graph[node_of(module)].add(node_of(other))
                why[node_of(module), node_of(other)].append(f"{module} imports {other}")
    circle = circle_in(graph)
    steps = pairwise(circle)
    assert not circle, f"a circle: {' -> '.join(circle)}\n" + "\n".join(
        line for step in steps for line in sorted(why[step])
    )


@pytest.mark.parametrize(
    ("graph", "circle"),
    [
        ({}, []),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}, ["b", "c", "d", "b"]),
        ({"a": {"b", "x"}, "b": set(), "x": {"y"}, "y": {"x"}}, ["x", "y", "x"]),
    ],
)
def test_a_circle_is_found_and_named(graph: dict[str, set[str]], circle: list[str]) -> None:
    assert circle_in(graph) == circle


@every_module
def test_code_does_not_go_by_the_public_names(path: Path) -> None:
    """Public names are imported on demand, so such an import would hide the file that it needs."""
    if not name_of(path).startswith("examples/"):
        assert not {
            module
            for module in imports_of(path)
            if module in {"tiercel", "tiercel.dataframe", "tiercel.testing"}
        }


@every(everything())
def test_every_import_goes_through_the_package(path: Path) -> None:
    """Two paths to one file make two modules, and each class would exist twice."""
    assert not {module for module in imports_of(path) if top(module) in FOLDERS}


def test_the_package_has_one_relative_link_per_folder_and_nothing_else() -> None:
    links = {
        path.name: path.readlink().as_posix()
        for path in (ROOT / "tiercel").iterdir()
        if path.is_symlink()
    }
    assert links == {folder: f"../{folder}" for folder in FOLDERS}
    others = {path.name for path in (ROOT / "tiercel").iterdir() if not path.is_symlink()} - {
        "__pycache__"
    }
    assert others == {"__init__.py", "__main__.py", "dataframe.py", "py.typed", "testing.py"}


@every_module
def test_what_runs_topologies_does_not_know_the_test_kit(path: Path) -> None:
    if not name_of(path).startswith(KIT):
        assert not [
            module for module in imports_of(path) if module.startswith("tiercel.workers.testing")
        ]


@every_module
def test_a_third_party_library_is_imported_only_where_it_belongs(path: Path) -> None:
    for module in imports_of(path):
        places = ONLY_IN.get(top(module))
        assert places is None or name_of(path).startswith(places), f"{module} does not belong here"


@every_module
def test_errors_of_redis_are_judged_in_one_place(path: Path) -> None:
    """A second translator could disagree with the first: "retry" here, "refuse" there."""
    if name_of(path).startswith(("acker/redis/", "acker/redis_")):
        return
    for node in ast.walk(parsed(path)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "redis"
        ):
            assert node.attr != "exceptions", f"line {node.lineno}"
            assert not node.attr.endswith("Error"), f"line {node.lineno}"
    assert not {module for module in imports_of(path) if module.startswith("redis.exceptions")}


@every_module
def test_the_environment_is_read_in_one_module_only(path: Path) -> None:
    if name_of(path) in READS_ENVIRONMENT:
        return
    for node in ast.walk(parsed(path)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
        ):
            assert node.attr not in {"environ", "environb", "getenv", "putenv"}, (
                f"line {node.lineno} reads the environment"
            )
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            assert not {alias.name for alias in node.names} & {"environ", "environb", "getenv"}


@every([*modules(), *modules_of_the_benchmark()])
def test_a_module_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MODULE_LINES


@every_module
def test_a_function_is_short(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 < FUNCTION_LINES, f"{node.name} is too long"


@every(sorted((ROOT / "tests").rglob("*.py")))
def test_no_test_is_imported_by_another(path: Path) -> None:
    """Helpers have files of their own."""
    assert not {
        module for module in imports_of(path) if module.startswith("tests.") and ".test_" in module
    }


@every_lua_file
def test_a_lua_script_is_short_and_says_its_keys_arguments_and_reply(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < LUA_LINES
    header = "\n".join(line for line in text.splitlines() if line.startswith("--"))
    for word in ("KEYS", "ARGV"):
        assert word in header, f"the header does not explain {word}"
    assert re.search(r"\brepl(y|ies)\b|\breturns?\b", header, re.IGNORECASE), (
        "the header does not explain the reply"
    )


@every_map
def test_a_folder_begins_with_a_map_of_itself_one_name_a_line(path: Path) -> None:
    nouns = {file.stem for file in path.parent.glob("*.py")} - {"__init__", "__main__"}
    nouns |= {file.parent.name for file in path.parent.glob("*/*.py")}
    lines = (ast.get_docstring(parsed(path)) or "").splitlines()
    found = [line.split()[0] for line in lines if re.match(r"\w+  +\S", line)]
    assert sorted(found) == sorted(nouns)


@every_map
def test_an_init_file_holds_its_map_and_nothing_else(path: Path) -> None:
    [documentation] = parsed(path).body
    assert isinstance(documentation, ast.Expr)
    assert isinstance(documentation.value, ast.Constant)


@every_module
def test_no_business_is_left_unfinished(path: Path) -> None:
    found = re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text())
    assert found is None, found


@pytest.mark.parametrize(
    "lock", ["constraints.txt", "bench/constraints.txt", "docs/constraints.txt"]
)
def test_nothing_in_the_lock_names_a_host_or_a_place(lock: str) -> None:
    for line in (ROOT / lock).read_text().splitlines():
        assert line.startswith("# ") or re.fullmatch(
            r"[a-z0-9.-]+==\S+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line
        ), line
