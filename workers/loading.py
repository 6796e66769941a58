"""Loads the topology that a command names, such as ``tiercel.examples.word_count:topology``."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from tiercel.queues.nouns import did_you_mean, with_article
from tiercel.queues.queue_spout import QueueSpout
from tiercel.spark_jobs.errors import SparkJobsError
from tiercel.spark_jobs.reasons import is_users, place_of
from tiercel.spark_jobs.spark.shipping import check_travel, code_of
from tiercel.spark_jobs.topology.config import parse_executors
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.errors import UsageError

_NAME = re.compile(
    r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*(\.[^\W\d]\w*)*)"
)
_FILE = re.compile(r"(?P<path>[^:]*[^:/])\.py(:(?P<attribute>.*))?", re.DOTALL)


def load_topology(name: str, spout_tasks: int | None = None) -> Topology:
    """Load the topology at ``MODULE:ATTRIBUTE``; a callable is called without arguments.

    Each spout that reads a queue gets at least ``spout_tasks`` tasks. Modules in the current folder
    take precedence. Raises UsageError with a one-line message.
    """
    _refuse_file(name)
    parts = _NAME.fullmatch(name)
    if parts is None:
        valid = name.replace("-", "_")
        if valid != name and _NAME.fullmatch(valid):
            raise UsageError(
                f"{name!r} does not name a topology: the name of a module has no hyphen; rename "
                f"the file or folder, and write {valid}"
            )
        raise UsageError(
            f"{name!r} does not name a topology: write MODULE:ATTRIBUTE, such as "
            "tiercel.examples.word_count:topology"
        )
    _refuse_hiding()
    _refuse_colon(parts["module"])
    found = _attribute(_import(parts["module"]), parts["attribute"], name)
    if callable(found) and not isinstance(found, Topology):
        found = _call(found, name)
    if not isinstance(found, Topology):
        raise UsageError(
            f"{name} {_given(found)}, not a topology: return what TopologyBuilder.build() returns"
        )
    found = replace(found, code=code_of(parts["module"]))
    return found if spout_tasks is None else _with_spout_tasks(found, spout_tasks)


def load_for_spark(
    name: str, spout_tasks: int | None, options: Mapping[str, str] = MappingProxyType({})
) -> Topology:
    """As ``load_topology``, with Spark options; checks that the bolts can be sent to Spark.

    Raises UsageError or SparkJobsError with a one-line message.
    """
    topology = with_spark_options(load_topology(name, spout_tasks), options)
    check_travel(topology)
    return topology


def module_of(name: str) -> str:
    """Return ``MODULE`` of ``MODULE:ATTRIBUTE``."""
    return name.partition(":")[0]


def spark_options_of(given: Iterable[str]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` options, as Spark's own programs do. Raises UsageError."""
    options = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(
                f"--conf {one!r:.60} is not KEY=VALUE with a Spark key, such as "
                "spark.executor.memory=2g"
            )
        options[key] = value
    return options


def with_spark_options(topology: Topology, options: Mapping[str, str]) -> Topology:
    """Return the topology with ``options`` overriding its own: the operator knows the cluster."""
    if not options:
        return topology
    config = replace(topology.config, spark_options={**topology.config.spark_options, **options})
    return replace(topology, config=config)


def with_executors(topology: Topology, executors: str | None) -> Topology:
    """Return the topology with the operator's range of executors, such as ``2..20``."""
    if executors is None:
        return topology
    config = replace(topology.config, executors=parse_executors(executors))
    return replace(topology, config=config)


def _import(module: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Either this module is missing, or a module that it imports.
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {module!r}, neither installed nor in {here}"
                f"{did_you_mean(module, _modules_here())}"
            ) from error
        raise UsageError(f"{module} cannot be imported: {_last_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{module} cannot be imported: {_last_line(error)}") from error


def _refuse_file(name: str) -> None:
    """Raise UsageError if ``name`` is a file; the message has the name of its module."""
    file = _FILE.fullmatch(name)
    if file is None:
        return
    path = Path(file["path"])
    here = Path.cwd()
    inside = (here / path).resolve()
    parts = inside.relative_to(here).parts if inside.is_relative_to(here) else (path.name,)
    module = ".".join(parts)
    attribute = file["attribute"] or "topology"
    if _NAME.fullmatch(f"{module}:{attribute}") is None:
        return
    where = "" if len(parts) > 1 or inside.parent == here else f", in {inside.parent}"
    raise UsageError(f"{name!r} is a file, not a module: write {module}:{attribute}{where}")


def _refuse_hiding() -> None:
    """Raise UsageError if a file in the current folder hides a module of Python's own or of a
    library that tiercel has imported.

    The folder comes first in the path of the processes that a run starts.
    """
    here = Path.cwd()
    for module in sorted({*_modules_here()}.intersection(sys.modules) - {"__main__"}):
        spec = getattr(sys.modules[module], "__spec__", None)
        # Modules within Python's program cannot be hidden.
        if spec is None or not spec.has_location or is_users(module, spec.origin or ""):
            continue
        # If it was imported from here, it has done no harm.
        imported_here = Path(spec.origin or "").parent in (here, here / module)
        is_checkout = module == "tiercel" and (here / module).is_dir()
        if imported_here or is_checkout:
            continue
        path = here / f"{module}.py"
        whose = "Python's own" if module in sys.stdlib_module_names else "the installed"
        raise UsageError(
            f"{path.name if path.exists() else module} in {here} hides {whose} module "
            f"{module!r}, without which nothing starts: rename it"
        )


def _refuse_colon(module: str) -> None:
    """Raise UsageError if the processes that a run starts cannot import a module of this folder."""
    here = str(Path.cwd())
    if not (os.pathsep in here and sys.flags.safe_path):
        return
    if module.partition(".")[0] in _modules_here():
        raise UsageError(
            f"Spark could not find the module {module!r} in {here}: PYTHONPATH ends a name at "
            f"{os.pathsep!r}, and PYTHONSAFEPATH leaves out the current folder; rename the folder, "
            "or unset PYTHONSAFEPATH"
        )


def _modules_here() -> list[str]:
    """Return the modules and packages in the current folder."""
    here = Path.cwd()
    return [
        path.stem
        for path in (*here.glob("*.py"), *(each.parent for each in here.glob("*/__init__.py")))
    ]


def _with_spout_tasks(topology: Topology, least: int) -> Topology:
    # Any number of tasks can share a queue. Other spouts may divide their source among their tasks,
    # and then need a worker for each task.
    spouts = {
        component: replace(spec, parallelism=max(least, spec.parallelism))
        if isinstance(spec.spout, QueueSpout)
        else spec
        for component, spec in topology.spouts.items()
    }
    return replace(topology, spouts=spouts)


def _attribute(module: ModuleType, path: str, name: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise UsageError(
                f"{name}: {_kind(found)} has no attribute {part!r}"
                f"{did_you_mean(part, _public(found))}"
            ) from error
    return found


def _call(factory: Any, name: str) -> Any:
    try:
        return factory()
    except SparkJobsError as error:
        raise UsageError(f"{name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{name}() failed: {_last_line(error)}") from error


def _public(thing: Any) -> list[str]:
    """Return its public names; for a module, leave out classes and modules, which are no
    topologies.
    """
    names = [name for name in dir(thing) if not name.startswith("_")]
    if not isinstance(thing, ModuleType):
        return names
    return [name for name in names if not isinstance(getattr(thing, name), type | ModuleType)]


def _given(thing: Any) -> str:
    return "gives None" if thing is None else f"is {_kind(thing)}"


def _kind(thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return f"module {thing.__name__}"
    return with_article(type(thing).__name__)


def _last_line(error: BaseException) -> str:
    """Return the error as one line, ``ValueError: no such thing (topologies.py:12)``.

    The place is in the user's code.
    """
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    place = "" if isinstance(error, SyntaxError) else place_of(error)
    return f"{summary} ({place})" if place else summary
