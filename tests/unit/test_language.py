"""Language rules: docstrings open with a verb or a noun, rates say per, actors have names."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "acker",
    "bench",
    "compose",
    "examples",
    "frames",
    "queues",
    "spark_jobs",
    "tests",
    "tiercel",
    "workers",
)
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

_OPENING = re.compile(r"(What|Whether|Who|Whose|Whom|Where|When|How)\b")
_RATE = re.compile(
    r"\b(?:one|once|call|copy|edge|entry|key|map|stream|trip|tuple|val|worker|xor) an? "
    r"(?:anchor|component|core|direction|file|host|key|line|message|root|row|server|shard|slot"
    r"|task|topology)\b"
    r"|\b(?:bytes|calls|entries|messages|roots|sentences|tuples|updates|\d) an? "
    r"(?:call|message|minute|root|second|shard|tree)\b"
    r"|\b(?:acked|counted|emitted|published|registered) a second\b(?! time)",
    re.IGNORECASE,
)
_ACTOR = re.compile(r"\b(?:nobody|somebody|anybody|everybody|whoever|whomever)\b", re.IGNORECASE)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and the statements in it; expressions are skipped, since they have no
    docstring.
    """
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)


def habits(source: str) -> list[tuple[int, str]]:
    """Return the line and the fault of each violation in a file."""
    found, prose = [], []
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                line = node.body[0].lineno
                prose.append((line, text))
                found += [(line, "opens with " + one[0]) for one in [_OPENING.match(text)] if one]
    if any(faults_in(line[line.index("#") :]) for line in source.splitlines() if "#" in line):
        # Tokenizing is slow, so it is done only for files in which a comment may have a fault.
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        prose += [(each.start[0], each.string) for each in tokens if each.type == tokenize.COMMENT]
    return sorted(found + [(line, fault) for line, text in prose for fault in faults_in(text)])


def faults_in(text: str) -> list[str]:
    said = " ".join(text.split())
    return [one[0] for pattern in (_RATE, _ACTOR) for one in pattern.finditer(said)]


@pytest.mark.parametrize(
    "source",
    ['"""What it is."""', "# One call a shard.", "# 5 roots a call.", "# Nobody knows."],
)
def test_it_finds_each_habit(source):
    assert habits(source)


def test_prose_has_none_of_the_three_habits():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in FILES
        if path != Path(__file__)
        for line, fault in habits(path.read_text("utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)
