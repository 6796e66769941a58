"""Run by each Python process of Spark as it starts: imports pyspark from its folder, not from the archive inside it.

Spark puts ``pyspark.zip`` before everything else. It holds sources only, which each process would compile again: half a second
of CPU, five times in a row until the first ack. See docs/decisions/pyspark-from-its-folder.md.
"""

import importlib
import sys
from pathlib import Path


def use_the_folder() -> None:
    """Take Spark's archives out of the path where this interpreter has the package that they lie in."""
    for entry in list(sys.path):
        archive = Path(entry)
        if archive.parts[-3:] == ("python", "lib", "pyspark.zip"):
            package = archive.parents[2]
            if str(package.parent) in sys.path and (package / "__init__.py").exists() and (package.parent / "py4j").is_dir():
                sys.path[:] = [each for each in sys.path if Path(each).parent != archive.parent]


def run_the_next() -> None:
    """There is one ``sitecustomize`` in a process, the first on the path: that of the user's own comes after ours."""
    ours = sys.modules.pop(__name__)
    sys.path[:] = [each for each in sys.path if Path(each) != Path(__file__).parent]
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours


if __name__ == "sitecustomize":
    use_the_folder()
    run_the_next()
