"""Packs the code that Spark's executors need into a ``.zip``, and checks before anything starts
that a topology can be pickled: Spark's own error has seventy lines and names no bolt.

Executors may have neither tiercel nor the topology. Modules travel with their byte code, otherwise
each Python worker would compile all of them at its start. An archive cannot contain compiled
extensions: packages such as numpy must be installed on executors.
"""

from __future__ import annotations

import pickle
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from tiercel.queues.habits import AbsentSpout, habits_of
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.reasons import raised, reason_of
from tiercel.spark_jobs.topology.graph import Topology

OURS = "tiercel"
# Its folders that run inside Spark tasks.
PARTS = ("acker", "queues", "spark_jobs")
_MOST_MB = 64


def pack_code(module: str, archive: Path) -> None:
    """Write tiercel and the code around a module, which has been imported, to ``archive``.

    An installed module travels alone. A module from a user's folder takes the folder's other
    modules and packages with it, including data files in packages, because it may import them
    later. Raises TopologyError if they are too large.
    """
    size = 0
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for root, name in _roots(module):
            for path in _files(root):
                size += path.stat().st_size
                if size > _MOST_MB << 20:
                    raise TopologyError(
                        f"more than {_MOST_MB} MB in the packages beside {module!r} would go to "
                        f"each executor; keep the topology in a folder of its own ({root.parent} "
                        f"has more)"
                    )
                _add(
                    packed,
                    path,
                    name if path == root else f"{name}/{path.relative_to(root).as_posix()}",
                )


def code_of(module: str) -> str:
    """Return eight hexadecimal digits that are equal for processes with equal Python code: that of
    a module, which has been imported, the code around it, and tiercel's.
    """
    digest = blake2b(digest_size=4)
    for root, name in _roots(module):
        for path in _files(root):
            if path.suffix == ".py":
                place = "" if path == root else path.relative_to(root).as_posix()
                digest.update(f"{name}/{place}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _roots(module: str) -> Iterator[tuple[Path, str]]:
    """Yield the modules and packages that travel, each with its name in the archive."""
    package = _place(OURS)
    top, _, rest = module.partition(".")
    parts = (*PARTS, rest.partition(".")[0]) if top == OURS else PARTS
    ours = _python_in(package)
    yield from (
        (path, f"{OURS}/{path.name}") for path in ours if path.suffix == ".py" or path.name in parts
    )
    if top == OURS:
        return
    place = _place(top)
    around = [place] if place.parent in _installed() else _python_in(place.parent)
    # In a checkout the folders of tiercel are beside the package.
    known = {package.resolve(), *(path.resolve() for path in ours)}
    yield from (
        (path, path.name) for path in dict.fromkeys([place, *around]) if path.resolve() not in known
    )


def _place(name: str) -> Path:
    """Return the file of a top-level module, or the folder of a package."""
    module = sys.modules[name]
    return (
        Path(next(iter(module.__path__)))
        if hasattr(module, "__path__")
        else Path(str(module.__file__))
    )


def _installed() -> set[Path]:
    return {Path(place) for place in sysconfig.get_paths().values()}


def _python_in(folder: Path) -> Iterable[Path]:
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(
        path for path in shown if path.suffix == ".py" or (path / "__init__.py").is_file()
    )


def _files(root: Path) -> Iterable[Path]:
    if root.is_file():
        return [root]
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sorted(
        path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def _add(packed: zipfile.ZipFile, path: Path, name: str) -> None:
    try:
        packed.write(path, name)
    except ValueError:  # a date before 1980, which zip cannot store
        packed.writestr(name, path.read_bytes())
    if path.suffix != ".py":
        return
    compiled = Path(cache_from_source(str(path)))
    # Python looks for byte code first, and ignores it if it belongs to another Python or source.
    if compiled.is_file():
        packed.writestr(f"{name}c", compiled.read_bytes())


def check_travel(topology: Topology) -> None:
    """Raise TopologyError if a bolt, a grouping or a setting cannot be pickled; the message names
    it and the attribute.
    """
    for named, thing in _parts(topology):
        error = _stuck(thing)
        if error is None:
            continue
        attribute = next(
            (
                f", because of its attribute {name!r}"
                for name, value in getattr(thing, "__dict__", {}).items()
                if _stuck(value) is not None
            ),
            "",
        )
        raise TopologyError(
            f"{named} cannot travel to Spark{attribute}: {reason_of(error)}; make objects that "
            "cannot be pickled in prepare, not in __init__"
        )


def without_spouts(topology: Topology) -> Topology:
    """Return the topology for bolts, without its spouts, which need not be picklable."""
    spouts = {
        component: replace(spec, spout=AbsentSpout(habits_of(spec.spout)))
        for component, spec in topology.spouts.items()
    }
    return replace(topology, spouts=spouts)


def _parts(topology: Topology) -> Iterator[tuple[str, Any]]:
    yield "the topology's config", topology.config
    for component, spec in topology.bolts.items():
        yield f"bolt {component!r}", spec.bolt
        yield f"the settings of bolt {component!r}", dict(spec.overrides)
        for one in spec.subscriptions:
            yield f"the grouping of bolt {component!r} on {one.component!r}", one.grouping


def _stuck(thing: Any) -> BaseException | None:
    """Return the error that pickling the object raises; None if it can be pickled."""
    try:
        pickle.dumps(thing)
    except raised():
        # Spark also pickles lambdas and nested functions. PySpark takes half a second to import, so
        # only topologies that need it pay for it.
        from pyspark import cloudpickle  # noqa: PLC0415

        try:
            cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
        except raised() as error:
            return error
    return None
