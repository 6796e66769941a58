"""The public names: ``tiercel`` and ``tiercel.testing``."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tiercel

ROOT = Path(__file__).parents[2]
OURS = ast.parse((ROOT / "tiercel/__init__.py").read_text())


def run(code: str) -> str:
    """Return the output of another Python process."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("name", tiercel.__all__)
def test_every_public_name_can_be_imported_and_has_a_docstring(name: str) -> None:
    assert getattr(tiercel, name) is not None
    assert name == "MsgId" or getattr(tiercel, name).__doc__


def test_python_finds_each_name_where_type_checkers_are_told_to_look() -> None:
    told = {
        alias.name: node.module
        for node in ast.walk(OURS)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tiercel.")
        for alias in node.names
    }
    assert told == tiercel._places()
    assert sorted(told) == tiercel.__all__


def test_a_name_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(AttributeError, match="module 'tiercel' has no attribute 'Nonsense'"):
        _ = tiercel.Nonsense
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        from tiercel import Nonsense  # noqa: F401, PLC0415 - the import is the test


def test_the_package_itself_imports_no_library() -> None:
    """``python -m tiercel.compose`` runs before any library is installed."""
    libraries = "{'numpy', 'pika', 'pyarrow', 'pydantic', 'pyspark', 'redis', 'typer'}"
    assert (
        run(
            f"import sys; import tiercel.compose.install; print(*{libraries} & set(sys.modules))"
        ).strip()
        == ""
    )


def test_a_file_of_bolts_needs_neither_the_broker_s_library_nor_spark() -> None:
    libraries = "{'pika', 'pyspark', 'redis'}"
    code = (
        f"import sys; from tiercel import BasicBolt, Bolt; print(*{libraries} & set(sys.modules))"
    )
    assert run(code).strip() == ""
