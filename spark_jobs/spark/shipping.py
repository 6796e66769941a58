"""Packs the code that Spark's executors need, as a ``.zip``.

They may be where neither tiercel nor the topology is.

Modules that are byte code here travel with it, else each Python worker would compile all of them
when it starts. An archive cannot hold compiled extensions: what needs them, as numpy and pyarrow
do, must be installed where executors run.
"""

from __future__ import annotations

import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import cache_from_source
from pathlib import Path

from tiercel.spark_jobs.errors import TopologyError

OURS = "tiercel"
# What of it runs inside Spark tasks.
PARTS = ("acker", "queues", "spark_jobs")
_MOST_MB = 64


def pack_code(module: str, archive: Path) -> None:
    """Write tiercel and the code around a module, which has been imported, to ``archive``.

    What is installed travels alone. A module from a folder of the user's takes the folder's other
    modules and packages with it, with the data files in packages: it may import them later. Raises
    TopologyError if that is too much.
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


def _roots(module: str) -> Iterator[tuple[Path, str]]:
    """Modules and packages that travel, each with its name in the archive."""
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
    # In a checkout the folders of tiercel lie beside it.
    known = {package.resolve(), *(path.resolve() for path in ours)}
    yield from (
        (path, path.name) for path in dict.fromkeys([place, *around]) if path.resolve() not in known
    )


def _place(name: str) -> Path:
    """The file of a top-level module, or the folder of a package."""
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
    except ValueError:  # older than an archive can say
        packed.writestr(name, path.read_bytes())
    if path.suffix != ".py":
        return
    compiled = Path(cache_from_source(str(path)))
    # Python looks for it first, and goes on to the source if it is of another Python or
    # of another source.
    if compiled.is_file():
        packed.writestr(f"{name}c", compiled.read_bytes())
