"""Makes importable in Spark's Python workers what this process can import: bolts are in test
modules, which only pytest can find.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import accumulate
from pathlib import Path
from types import ModuleType

_INSTALLED = tuple(
    f"{Path(place).resolve()}/"
    for place in {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)


@dataclass(frozen=True, kw_only=True)
class Imports:
    """Places of the imported modules of one process, beside installed ones.

    To unpickle it makes another process know them.

    Nothing is imported before it is needed: what a module does when it is imported, it does in the
    workers only if a bolt's code is in it, or is used by it.
    """

    # ``sys.path``.
    path: tuple[str, ...]
    # Module to file.
    files: Mapping[str, str]
    # Package to the folders of its modules; for those that pytest only thought up there are none.
    packages: Mapping[str, Sequence[str]]

    @classmethod
    def of_this_process(cls) -> Imports:
        files = {
            name: file
            for name, module in list(sys.modules.items())
            if (file := _own_file(name, module))
        }
        # pytest makes up empty modules in the places of folders: they count as packages, because
        # others have them as parents.
        parents = {
            parent for name in files for parent in accumulate(name.split(".")[:-1], "{}.{}".format)
        }
        packages = {
            name: _folders(module)
            for name in files
            if hasattr(module := sys.modules[name], "__path__")
        }
        packages |= {
            name: _folders(sys.modules[name])
            for name in parents - files.keys()
            if name in sys.modules
        }
        path = tuple(str(Path(entry or ".").resolve()) for entry in sys.path)
        return cls(path=path, files=files, packages=packages)

    def restore(self) -> None:
        """Make this process able to import the same. Idempotent."""
        if self == _Finder.imports:
            return
        sys.path += [entry for entry in self.path if entry not in sys.path]
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)
        _Finder.imports = self

    def __reduce__(self) -> tuple[Callable[..., Imports], tuple[object, ...]]:
        return _restored, (self.path, self.files, self.packages)


class _Finder:
    """First in ``sys.meta_path``: a module means the same file in every process, whatever
    else has its name.
    """

    imports: Imports | None = None

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG003 - Python's
        if cls.imports is None:
            return None
        folders = cls.imports.packages.get(name)
        if name in cls.imports.files:
            found = None if folders is None else list(folders)
            return spec_from_file_location(
                name, cls.imports.files[name], submodule_search_locations=found
            )
        if folders is not None:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = list(folders)
            return spec
        return None


def _restored(
    path: tuple[str, ...], files: Mapping[str, str], packages: Mapping[str, Sequence[str]]
) -> Imports:
    imports = Imports(path=path, files=files, packages=packages)
    imports.restore()
    return imports


def _own_file(name: str, module: ModuleType) -> str | None:
    """The source file of a module that is not installed.

    Those that are, workers find by themselves.
    """
    file = getattr(module, "__file__", None)
    if name == "__main__" or not isinstance(file, str) or not file.endswith(".py"):
        return None
    resolved = Path(file).resolve()
    return (
        str(resolved) if resolved.is_file() and not str(resolved).startswith(_INSTALLED) else None
    )


def _folders(package: ModuleType) -> list[str]:
    return [str(Path(folder).resolve()) for folder in getattr(package, "__path__", ())]
