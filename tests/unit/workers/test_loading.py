"""Naming a topology on the command line: every mistake is one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.errors import UsageError
from tiercel.workers.loading import load_topology, spark_options_of, with_spark_options


@pytest.fixture
def module(tmp_path: Path, monkeypatch):
    """``module(source)`` writes a module with a new name into the current folder and returns the
    name.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(source: str) -> str:
        name = f"module_{uuid.uuid4().hex[:8]}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


BUILD = (
    "import tiercel.examples.word_count\ntopology = tiercel.examples.word_count.topology\nready = "
    "topology()\n"
)


def test_a_factory_in_a_module_of_the_current_folder_is_called(module) -> None:
    assert isinstance(load_topology(f"{module(BUILD)}:topology"), Topology)


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("queue.py", "Python's own"),
        ("email/__init__.py", "Python's own"),
        ("redis.py", "the installed"),
        ("pika/__init__.py", "the installed"),
        ("tiercel.py", "the installed"),
    ],
)
def test_a_file_that_hides_a_module_of_python_or_a_library_is_named(module, file, whose) -> None:
    """Its name is fine for this process, but not for those that it starts."""
    name = module(BUILD)
    path = Path(file)
    path.parent.mkdir(exist_ok=True)
    path.write_text(BUILD)
    hidden = file.partition("/")[0].removesuffix(".py")
    for named in (name, hidden):
        with pytest.raises(UsageError, match=f" hides {whose} module '{hidden}'.* rename it"):
            load_topology(f"{named}:topology")
    path.rename(path.with_name("not_hidden.py"))
    assert isinstance(load_topology(f"{name}:topology"), Topology)


@pytest.mark.parametrize("name", ["wave", "time", "os"])
def test_a_file_that_hides_no_module_which_tiercel_uses_is_fine(module, name, monkeypatch) -> None:
    """Python has time and os within its program, and finds them first."""
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    Path(f"{name}.py").write_text("")
    named = f"{module(f'import {name}{chr(10)}{BUILD}')}:topology"
    assert isinstance(load_topology(named), Topology)
    assert isinstance(load_topology(named), Topology)
    sys.modules.pop("wave", None)


def test_a_checkout_of_tiercel_and_a_main_file_hide_nothing(module, monkeypatch) -> None:
    Path("tiercel").mkdir()
    Path("tiercel", "__init__.py").write_text("")
    Path("__main__.py").write_text("")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["pytest"])  # as python -m has it
    assert isinstance(load_topology(f"{module(BUILD)}:topology"), Topology)


@pytest.mark.parametrize(
    ("folder", "safe", "said"),
    [
        ("a:b", "1", r"error    topology: Spark could not find the module 'mine' in .*, or unset"),
        ("a:b", "", "ok       topology: word-count has"),
        ("ab", "1", "ok       topology: word-count has"),
    ],
)
def test_a_folder_whose_modules_spark_could_not_find_is_refused(
    tmp_path, folder, safe, said
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "mine.py").write_text(BUILD)
    root = str(Path(__file__).parents[3])
    variables = {"PYTHONPATH": root, "PYTHONSAFEPATH": safe, "XDG_RUNTIME_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "tiercel", "check", "mine:topology"],
        cwd=tmp_path / folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.match(said, ended.stdout.splitlines()[0]), ended.stdout + ended.stderr


def test_a_topology_that_is_already_built_is_taken_as_it_is(module) -> None:
    assert isinstance(load_topology(f"{module(BUILD)}:ready"), Topology)


@pytest.mark.parametrize(
    ("source", "attribute", "message"),
    [
        ("", "nothing", r"module_\w+:nothing: module module_\w+ has no attribute 'nothing'"),
        (
            "thing = 3",
            "thing",
            (
                r"module_\w+:thing is an int, not a topology: return what "
                r"TopologyBuilder.build\(\) returns"
            ),
        ),
        ("def f():\n    return None", "f", r"module_\w+:f gives None, not a topology.*"),
        ("def f(x):\n    pass", "f", r"module_\w+:f\(\) failed: TypeError: .*missing 1 required.*"),
        (
            "def f():\n    raise ValueError('two\\nlines')",
            "f",
            r"module_\w+:f\(\) failed: ValueError: two lines \(module_\w+.py:2\)",
        ),
        (
            "from tiercel import QueueSpout\ndef f():\n    QueueSpout('q', 'a float64')",
            "f",
            r"module_\w+:f\(\) failed: SchemaError: unknown type 'float64'.* \(module_\w+.py:3\)",
        ),
        ("def f():\n    raise SystemExit(3)", "f", r"module_\w+:f\(\) failed: SystemExit: 3 .*"),
        (
            "1 / 0",
            "f",
            (
                r"module_\w+ cannot be imported: ZeroDivisionError: division by zero "
                r"\(module_\w+.py:1\)"
            ),
        ),
        ("def (:", "f", r"module_\w+ cannot be imported: SyntaxError: .*"),
        (
            "import no_such_thing",
            "f",
            (
                r"module_\w+ cannot be imported: ModuleNotFoundError: No module named "
                r"'no_such_thing'.*"
            ),
        ),
    ],
)
def test_a_mistake_in_the_module_is_one_line(
    module, source: str, attribute: str, message: str
) -> None:
    with pytest.raises(UsageError, match=f"^{message}$") as caught:
        load_topology(f"{module(source)}:{attribute}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["tiercel.examples.word_count", "", ":", "a:", ":b", "a b:c", "a:b:c", "../a:b", "a.:b"]
)
def test_a_name_without_module_and_attribute_shows_how_to_write_it(name: str) -> None:
    with pytest.raises(UsageError, match="write MODULE:ATTRIBUTE"):
        load_topology(name)


@pytest.mark.parametrize("name", ["my-project:topology", "my-project.orders-eu:topology"])
def test_a_module_whose_name_has_a_hyphen_is_to_be_renamed(name: str) -> None:
    with pytest.raises(UsageError, match=f"has no hyphen; .*write {name.replace('-', '_')}$"):
        load_topology(name)


@pytest.mark.parametrize(
    "name",
    ["no_such_module:topology", "no_such.module:topology", "tiercel.examples.no_such:topology"],
)
def test_a_module_that_is_not_there_is_said_to_be_missing(name: str, module) -> None:
    with pytest.raises(
        UsageError, match=r"^there is no module '[\w.]+', neither installed nor in /.*$"
    ):
        load_topology(name)


@pytest.mark.parametrize(
    ("given", "attribute"), [("topolgy", "topology"), ("Topology", "topology"), ("redy", "ready")]
)
def test_a_misspelt_attribute_is_named_with_one_that_is_alike(module, given, attribute) -> None:
    with pytest.raises(
        UsageError, match=rf"has no attribute '{given}'; did you mean '{attribute}'\?$"
    ):
        load_topology(f"{module(BUILD)}:{given}")


def test_a_class_or_a_module_is_not_what_was_meant(module) -> None:
    code = "from tiercel import Topology\nimport queue as topologie\n" + BUILD
    with pytest.raises(UsageError, match=r"; did you mean 'topology'\?$"):
        load_topology(f"{module(code)}:topolgy")


def test_a_misspelt_module_is_named_with_one_of_this_folder(module, tmp_path) -> None:
    (tmp_path / "orders.py").write_text(BUILD)
    (tmp_path / "shipping").mkdir()
    (tmp_path / "shipping/__init__.py").write_text(BUILD)
    with pytest.raises(UsageError, match=r"no module 'ordrs', .*; did you mean 'orders'\?$"):
        load_topology("ordrs:topology")
    with pytest.raises(UsageError, match=r"no module 'shiping', .*; did you mean 'shipping'\?$"):
        load_topology("shiping:topology")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("orders.py:topology", "write orders:topology$"),
        ("./orders.py:topology", "write orders:topology$"),
        ("orders.py", "write orders:topology$"),
        ("shop/orders.py:make.it", "write shop.orders:make.it$"),
        ("../orders.py:topology", "write orders:topology, in /"),
        ("/elsewhere/orders.py:topology", "write orders:topology, in /elsewhere$"),
    ],
)
def test_a_file_is_answered_with_its_module_and_is_not_imported(
    module, tmp_path, given, wanted
) -> None:
    (tmp_path / "orders.py").write_text("raise SystemExit('imported')")
    module("")
    with pytest.raises(UsageError, match=wanted):
        load_topology(given)


def test_spouts_that_read_a_queue_get_more_tasks_and_no_others(module) -> None:
    name = module(
        "from tiercel import QueueSpout, Spout\nfrom tiercel import BasicBolt, TopologyBuilder\n"
        "class Own(Spout):\n    output_fields = 'n long'\ndef topology():\n    builder = "
        "TopologyBuilder('several')\n    builder.set_spout('few', QueueSpout('few', fields='n "
        "long'))\n    builder.set_spout('many', QueueSpout('many', fields='n long'), "
        "parallelism=5)\n    builder.set_spout('own', Own(), parallelism=2)\n    "
        "builder.set_bolt('sink', BasicBolt()).shuffle_grouping('own')\n    return "
        "builder.build()\n"
    )
    raised = load_topology(f"{name}:topology", 3)
    plain = load_topology(f"{name}:topology")
    assert {spout: spec.parallelism for spout, spec in raised.spouts.items()} == {
        "few": 3,
        "many": 5,
        "own": 2,
    }
    assert {spout: spec.parallelism for spout, spec in plain.spouts.items()} == {
        "few": 1,
        "many": 5,
        "own": 2,
    }
    assert raised.task_ids("sink") == range(11, 12)


def test_an_operators_options_of_spark_go_over_the_topologys() -> None:
    topology = with_spark_options(
        load_topology("tiercel.examples.word_count:topology"), {"spark.a": "1", "spark.b": "2"}
    )
    changed = with_spark_options(topology, spark_options_of(["spark.b=3", "spark.c=a=b"]))
    assert dict(changed.config.spark_options) == {"spark.a": "1", "spark.b": "3", "spark.c": "a=b"}
    assert with_spark_options(changed, {}) is changed


@pytest.mark.parametrize("given", ["spark.executor.memory", "executor.memory=2g", "=1", ""])
def test_an_option_that_is_none_of_sparks_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE with a Spark key"):
        spark_options_of([given])
